"""SUPER beside a DataLoader with Pillow, on this machine and these images: what ``superdl demo`` runs.

`measuring` is a process that reads epochs with one of them, `running` starts such processes one after the
other, `showing` says what they took. Nothing is trained.
"""

from __future__ import annotations

__all__: list[str] = []
