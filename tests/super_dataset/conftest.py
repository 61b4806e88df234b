"""Fixtures of the reader's tests: a real cache."""

from __future__ import annotations

from tests.fixtures.valkey import valkey

__all__ = ["valkey"]
