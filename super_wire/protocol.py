"""The protocol between sampler and coordinator: its version, metadata and addresses."""

from __future__ import annotations

import re
from functools import cache

from superdl.super_wire.recipe import PIPELINE_VERSION

# A coordinator refuses clients of any other version.
PROTOCOL_VERSION = 1
# Trailing metadata: the class of :mod:`superdl.super_wire.errors` to raise, with the status details
# as its message.
ERROR_METADATA_KEY = "super-error"
# Metadata: ``Bearer <token>``, for a coordinator that requires a token.
TOKEN_METADATA_KEY = "authorization"  # noqa: S105  # the name of a header, not a token
# Limit for a ``NextBatches`` reply, unless its first batch alone is larger.
MAX_REPLY_BYTES = 2**20
_HOST_AND_PORT = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.%]+)\]|(?P<host>[A-Za-z0-9._-]+)):(?P<port>[0-9]{1,5})")
_PORT_MAX = 65_535


def socket_path(address: str) -> str | None:
    """Return the path in ``unix:/path`` or ``unix:///path``, or ``None`` for anything else."""
    if not address.startswith("unix:"):
        return None
    path = address.removeprefix("unix:")
    return path.removeprefix("//") if path.startswith("///") else path


def host_and_port(address: str) -> tuple[str, int]:
    """Split ``host:port`` or ``[address]:port``. Returns an empty host and port 0 for anything else."""
    match = _HOST_AND_PORT.fullmatch(address)
    if match is None or not 0 < int(match["port"]) <= _PORT_MAX:
        return "", 0
    return match["v6"] or match["host"], int(match["port"])


@cache
def installed_version() -> str:
    """Return SUPER's version, or ``0+unpackaged`` with the pipeline version if it is not installed."""
    from importlib.metadata import PackageNotFoundError, version  # slow to import

    try:
        return version("superdl")
    except PackageNotFoundError:
        return f"0+unpackaged.p{PIPELINE_VERSION}"
