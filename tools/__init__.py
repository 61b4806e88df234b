"""Programs for developing and deploying SUPER, each a target of the Makefile; not in the wheel."""

from __future__ import annotations

__all__: list[str] = []
