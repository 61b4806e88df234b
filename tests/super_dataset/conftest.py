"""Fixtures: a real cache."""

from tests.fixtures.valkey import valkey

__all__ = ["valkey"]
