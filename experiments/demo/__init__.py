"""Compare SUPER to a DataLoader with Pillow, on this machine: ``superdl demo``. Nothing is trained."""

from __future__ import annotations

__all__: list[str] = []
