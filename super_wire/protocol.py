"""The version of the conversation between sampler and coordinator, and how failures travel over it.

The messages themselves are ``coordinator.proto``. A coordinator refuses another version.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version

from superdl.super_wire.recipe import PIPELINE_VERSION

__all__ = [
    "ERROR_METADATA_KEY",
    "MAX_REPLY_BYTES",
    "PROTOCOL_VERSION",
    "TOKEN_METADATA_KEY",
    "installed_version",
]

PROTOCOL_VERSION = 1

ERROR_METADATA_KEY = "super-error"
"""Trailing metadata that names the class of :mod:`superdl.super_wire.errors` to raise; the status details are
its message.
"""

TOKEN_METADATA_KEY = "authorization"  # noqa: S105  # the name of a header, not a token
"""Metadata that carries ``Bearer <token>`` where a coordinator asks for one."""

MAX_REPLY_BYTES = 2**20
"""A ``NextBatches`` reply stays below this unless its first batch alone is larger."""


@cache
def installed_version() -> str:
    """The version of SUPER; without package metadata ``0+unpackaged`` and the pipeline version."""
    try:
        return version("superdl")
    except PackageNotFoundError:
        return f"0+unpackaged.p{PIPELINE_VERSION}"
