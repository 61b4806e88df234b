"""Messages between the local executor and its workers: JSON, preceded by its length as 4 big-endian bytes.

A request has the number of the call, which its answer repeats: so a second answer is never taken for the next
request's.
"""

from __future__ import annotations

import json
from typing import Any

__all__ = ["FIRST_CALL", "LENGTH_BYTES", "MAX_FRAME_BYTES", "FramingError", "body_length", "frame", "parse"]

FIRST_CALL = 1
"""Number of the first call to a worker; what it says unasked, that it cannot serve, answers that one."""

LENGTH_BYTES = 4
MAX_FRAME_BYTES = 64 * 2**20


class FramingError(Exception):
    """The other side sent what is no message."""


def frame(message: dict[str, Any]) -> bytes:
    """A message with its length."""
    body = json.dumps(message, separators=(",", ":")).encode()
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def body_length(prefix: bytes) -> int:
    """The length that follows from a message's first bytes."""
    length = int.from_bytes(prefix, "big")
    if length > MAX_FRAME_BYTES:
        msg = f"a message of {length} bytes is over the limit of {MAX_FRAME_BYTES}"
        raise FramingError(msg)
    return length


def parse(body: bytes) -> dict[str, Any]:
    """The message in a frame's body."""
    try:
        message = json.loads(body)
    except ValueError as error:
        msg = f"a message is JSON: {error}"
        raise FramingError(msg) from error
    if not isinstance(message, dict):
        msg = f"a message is a mapping; not {type(message).__name__}"
        raise FramingError(msg)
    return message
