"""Adds the versions of the loaders that a benchmark compares to what is known of the machine."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from benchmarks.contenders import CONTENDERS

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["with_versions"]


def with_versions(environment: dict[str, Any], contenders: Iterable[str]) -> dict[str, Any]:
    """The environment with these loaders' packages added; ``None`` for one that is not installed."""
    names = {distribution for name in contenders for distribution in CONTENDERS[name].distributions}
    added = {name: _version(name) for name in sorted(names)}
    return {**environment, "packages": {**environment["packages"], **added}}


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
