"""``superdl demo``: compare SUPER to a DataLoader with Pillow, on this machine.

`measuring` is a process that reads epochs with one of them, `demo` starts these processes one after the other
and presents the results. Nothing is trained.
"""

from __future__ import annotations

__all__: list[str] = []
