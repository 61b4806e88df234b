"""Programs for those who work on SUPER or deploy it, each a target of the Makefile; not in the wheel."""

from __future__ import annotations

__all__: list[str] = []
