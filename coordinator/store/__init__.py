"""The coordinator's side of the store: its choice, its records' places, its room."""

from __future__ import annotations

__all__: list[str] = []
