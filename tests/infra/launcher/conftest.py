"""Fixtures of the launcher's tests."""

from __future__ import annotations

from tests.infra.launcher.hosts import hosts

__all__ = ["hosts"]
