"""Prefetch requests and results: what one function invocation is asked to do, and what it answers.

Both are JSON, column by column, since that is what AWS Lambda's Invoke API carries. A request names the cache
by address only: credentials come from the function's own settings. Decoding checks every field, as both sides
of a network do.
"""

from __future__ import annotations

import enum
import json
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeVar

from super_wire.errors import ConfigError
from super_wire.ids import ID_BYTES

__all__ = [
    "MAX_SAMPLES_PER_REQUEST",
    "REQUEST_VERSION",
    "Limits",
    "Outcome",
    "PrefetchRequest",
    "PrefetchResult",
]

REQUEST_VERSION = 1
MAX_SAMPLES_PER_REQUEST = 4096
_ONE_VERSION = "deploy one version of SUPER"


class Outcome(enum.StrEnum):
    """What became of one sample of a request."""

    CACHED = "cached"
    """The record is in the cache: its SET was acknowledged."""
    TOMBSTONE = "tombstone"
    """It can never be produced from these bytes; a permanent tombstone is in the cache."""
    MISSING = "missing"
    """The object does not exist (any more)."""
    CHANGED = "changed"
    """The object has another version than the catalog lists."""
    REFUSED = "refused"
    """The source forbids reading it."""
    SOURCE_ERROR = "source_error"
    """The source failed in another, perhaps passing, way."""
    CACHE_ERROR = "cache_error"
    """It was decoded, and the cache did not take it."""
    STEP_ERROR = "step_error"
    """A custom step raised."""
    EXPIRED = "expired"
    """The request's expiry came first; it was not tried."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on one object: encoded size in bytes, decoded size in pixels (width times height)."""

    object_bytes: int = 256 * 2**20
    image_pixels: int = 178_956_970


@dataclass(frozen=True, slots=True)
class PrefetchRequest:
    """Samples that one invocation is asked to produce.

    ``keys``, ``versions`` and ``ids`` run in parallel; an id is 32 hex digits, and the function derives it
    anew to be sure that both sides mean the same sample. ``expires_at`` is Unix time in seconds: what has not
    been begun by then is not begun.
    """

    request_id: str
    bucket: str
    recipe: str
    epoch: int
    cache: str
    expires_at: float
    keys: tuple[str, ...]
    versions: tuple[str, ...]
    ids: tuple[str, ...]
    limits: Limits = field(default_factory=Limits)

    def to_json(self) -> str:
        """As JSON text, for any executor."""
        return json.dumps({"super_request": REQUEST_VERSION, **asdict(self)}, separators=(",", ":"))

    @classmethod
    def from_mapping(cls, event: dict[str, Any]) -> PrefetchRequest:
        """From the parsed JSON; ``ConfigError`` names what is wrong."""
        version = event.get("super_request")
        if version != REQUEST_VERSION:
            msg = f"the function reads requests of version {REQUEST_VERSION}, not {version!r}: {_ONE_VERSION}"
            raise ConfigError(msg)
        request = _build(cls, event, "prefetch request")
        count = len(request.keys)
        if not 1 <= count <= MAX_SAMPLES_PER_REQUEST:
            msg = f"a prefetch request names 1 to {MAX_SAMPLES_PER_REQUEST} samples; this one {count}"
            raise ConfigError(msg)
        if not count == len(request.versions) == len(request.ids):
            msg = "a prefetch request has as many versions and ids as keys"
            raise ConfigError(msg)
        if any(len(hex_id) != 2 * ID_BYTES for hex_id in request.ids):
            msg = f"a sample id has {2 * ID_BYTES} hex digits"
            raise ConfigError(msg)
        return request


@dataclass(frozen=True, slots=True)
class PrefetchResult:
    """What became of every sample of a request, in its order.

    Times are microseconds of work per sample: fetching bytes, decoding and transforming, pushing (shared by
    the samples of one pipeline). ``source_bytes`` were fetched, ``record_bytes`` are now in the cache.
    ``messages`` explains outcomes other than ``cached``, by the sample's place in the request.
    """

    request_id: str
    function_version: str
    cold_start: bool
    outcomes: tuple[str, ...]
    fetch_us: tuple[int, ...]
    decode_us: tuple[int, ...]
    push_us: tuple[int, ...]
    source_bytes: tuple[int, ...]
    record_bytes: tuple[int, ...]
    messages: dict[str, str] = field(default_factory=dict)
    duration_us: int = 0

    def to_mapping(self) -> dict[str, Any]:
        """As a mapping of JSON values, which is what a handler returns."""
        return {"super_result": REQUEST_VERSION, **asdict(self)}

    @classmethod
    def from_mapping(cls, answer: dict[str, Any]) -> PrefetchResult:
        """From the parsed JSON; ``ConfigError`` names what is wrong."""
        version = answer.get("super_result")
        if version != REQUEST_VERSION:
            msg = (
                f"the coordinator reads results of version {REQUEST_VERSION}, not {version!r}: {_ONE_VERSION}"
            )
            raise ConfigError(msg)
        result = _build(cls, answer, "prefetch result")
        count = len(result.outcomes)
        columns = (
            result.fetch_us,
            result.decode_us,
            result.push_us,
            result.source_bytes,
            result.record_bytes,
        )
        if any(len(column) != count for column in columns):
            msg = "the columns of a prefetch result differ in length"
            raise ConfigError(msg)
        known = frozenset(Outcome)
        strange = {outcome for outcome in result.outcomes if outcome not in known}
        if strange:
            msg = f"unknown outcomes in a prefetch result: {sorted(strange)}"
            raise ConfigError(msg)
        return result


_Message = TypeVar("_Message", PrefetchRequest, PrefetchResult)

_TUPLE_ITEMS = {"tuple[str, ...]": str, "tuple[int, ...]": int}
_SCALARS = {"str": str, "int": int, "float": (int, float), "bool": bool, "dict[str, str]": dict}


def _build(cls: type[_Message], mapping: dict[str, Any], name: str) -> _Message:
    """Make a message from JSON values, each checked against the field's annotation."""
    values: dict[str, Any] = {}
    for entry in fields(cls):
        if entry.name not in mapping:
            msg = f"the {name} lacks {entry.name!r}"
            raise ConfigError(msg)
        value = mapping[entry.name]
        kind = str(entry.type)
        if kind in _TUPLE_ITEMS:
            good = isinstance(value, (list, tuple)) and all(type(v) is _TUPLE_ITEMS[kind] for v in value)
            values[entry.name] = tuple(value) if good else None
        elif kind == "Limits":
            good = isinstance(value, dict) and all(type(value.get(f.name)) is int for f in fields(Limits))
            values[entry.name] = Limits(**{f.name: value[f.name] for f in fields(Limits)}) if good else None
        else:
            good = isinstance(value, _SCALARS[kind])  # type: ignore[arg-type]  # a type or a pair of types
            values[entry.name] = value
        if not good:
            msg = f"in a {name}, {entry.name} is {kind}; not {str(value)[:80]!r}"
            raise ConfigError(msg)
    return cls(**values)
