"""Programs for developing and deploying SUPER, each with a Makefile target. Not part of the wheel."""

from __future__ import annotations

__all__: list[str] = []
