"""Outcomes through the cache: what a function appends to a stream where nobody waits for its answer.

One entry tells of one invocation: its result, or why it failed as a whole. An entry has one field, JSON, the
same that a call would answer. Entries may come twice or not at all, as functions and caches go: whoever
follows the stream knows what it waits for, and for how long. The streams' names are
:mod:`superdl.super_wire.keys`'.
"""

from __future__ import annotations

import json
import reprlib
from typing import TYPE_CHECKING, TypeAlias

from superdl.super_wire.errors import ConfigError
from superdl.super_wire.request import PrefetchFailure, PrefetchResult

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "MAX_OUTCOME_BYTES",
    "OUTCOME_FIELD",
    "OUTCOME_STREAM_MAXLEN",
    "Answer",
    "pack_outcome",
    "read_outcome",
]

OUTCOME_FIELD = b"r"

OUTCOME_STREAM_MAXLEN = 16_384
"""Bound of a stream, given with every XADD (approximate trimming): more than may be in flight."""

MAX_OUTCOME_BYTES = 16 * 2**20
"""The longest entry that is read; one of 4,096 samples, each with a long message, has half of that."""

Answer: TypeAlias = "PrefetchResult | PrefetchFailure"


def pack_outcome(answer: Answer) -> bytes:
    """The value of an entry's one field."""
    return json.dumps(answer.to_mapping(), separators=(",", ":")).encode()


def read_outcome(entry: Mapping[bytes, bytes]) -> Answer:
    """What an entry of a stream tells.

    Raises:
        ConfigError: it is none of ours; the message says why.
    """
    packed = entry.get(OUTCOME_FIELD)
    if packed is None:
        msg = f"an outcome lacks the field {OUTCOME_FIELD.decode()!r}"
        raise ConfigError(msg)
    if len(packed) > MAX_OUTCOME_BYTES:
        msg = f"an outcome of {len(packed):,} bytes is over the {MAX_OUTCOME_BYTES:,} that are read"
        raise ConfigError(msg)
    try:
        mapping = json.loads(packed)
    except (ValueError, RecursionError) as error:
        msg = f"an outcome is JSON; not {reprlib.repr(packed)}"
        raise ConfigError(msg) from error
    if isinstance(mapping, dict) and "super_failure" in mapping:
        return PrefetchFailure.from_mapping(mapping)
    return PrefetchResult.from_mapping(mapping)
