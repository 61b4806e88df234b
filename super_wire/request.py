"""Prefetch requests and results, which are the input and output of a function. Every field is checked."""

from __future__ import annotations

import enum
import json
import reprlib
from dataclasses import dataclass, field, replace
from typing import Any

from superdl.super_wire.errors import ConfigError
from superdl.super_wire.ids import (
    ID_BYTES,
    MAIN_FIELD,
    MAX_FIELDS,
    checked_field,
    checked_naming,
    id_bucket,
    shown_name,
)
from superdl.super_wire.message_fields import mapping_of, message_in
from superdl.super_wire.redaction import clean_text

# Requests are JSON, in columns, because the Invoke API of AWS Lambda transfers JSON.
REQUEST_VERSION = 6
MAX_SAMPLES_PER_REQUEST = 4096

# Encodings of a member: stored as is, or a raw deflate stream, as in zip archives.
MEMBER_ENCODINGS = ("", "deflate")
# Encoding prefix for a row of a Parquet file, followed by the path of a column. The member's offset is then
# the index of the row group, and its length the index of the row in that group, both from 0.
ROW_ENCODING = "parquet:"

# Upper limit of numbers in a result, whose sums the coordinator computes.
_RESULT_NUMBER_MAX = 2**40
_DIGITS_MAX = 10
_OPTIONAL = frozenset({"fields", "members", "member_offsets", "member_lengths", "encodings"})


def is_row(encoding: str) -> bool:
    """Return whether a member with this encoding is a row of a Parquet file."""
    return encoding.startswith(ROW_ENCODING) and encoding != ROW_ENCODING


class RequestKind(enum.StrEnum):
    """The work of a function on the samples of a request. The values are the names on the wire."""

    DECODE = "decode"  # fetch and decode the samples, and push records into the cache
    DECODE_TO_STORE = "decode_to_store"  # the same, and write a pack of what the cache accepted
    DECODE_TO_POINTERS = "decode_to_pointers"  # decode into a pack; the cache may get pointers
    RESTORE = "restore"  # push records from packs into the cache
    SAVE = "save"  # write a pack of cached records

    decodes: bool  # whether samples are fetched from their source and decoded
    fills_cache: bool  # whether readers may be waiting for the records
    writes_pack: bool

    def __init__(self, name: str) -> None:
        self.decodes = name.startswith("decode")
        self.fills_cache = name != "save"
        self.writes_pack = name not in {"decode", "restore"}


class Outcome(enum.StrEnum):
    """The result for one sample of a request."""

    CACHED = "cached"  # the record is in the cache: its SET was acknowledged
    TOMBSTONE = "tombstone"  # the sample can never be produced: the cache has a permanent tombstone
    MISSING = "missing"  # the object does not exist, or no longer exists
    CHANGED = "changed"  # the object does not have the version in the catalog
    REFUSED = "refused"  # the source forbids reading it
    UNAVAILABLE = "unavailable"  # the source throttles or does not answer; not counted as an attempt
    SOURCE_ERROR = "source_error"  # the source failed in another way
    CACHE_ERROR = "cache_error"  # it was decoded, but the cache did not accept it
    CACHE_FULL = "cache_full"  # it was decoded, but the cache refused it for lack of memory
    STEP_ERROR = "step_error"  # a custom step raised
    EXPIRED = "expired"  # the request expired first; the sample was not tried
    TIMED_OUT = "timed_out"  # decoding took too long; a faster machine may succeed
    NOT_STORED = "not_stored"  # the store has no valid record at the location
    STORE_ERROR = "store_error"  # the store failed to answer or refused; the record may exist
    NOT_CACHED = "not_cached"  # the cache no longer has a valid record to save


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits for one object: the encoded size in bytes and the decoded size in pixels."""

    object_bytes: int = 256 * 2**20
    image_pixels: int = 178_956_970


@dataclass(frozen=True, slots=True)
class PrefetchRequest:
    """The samples that one invocation produces, in parallel columns.

    If samples are *members* of objects, sample ``i`` is made from ``member_lengths[i]`` bytes
    from ``member_offsets[i]`` of the object. If samples have further ``fields``, the keys, versions
    and columns of members describe *parts*: first the samples' own objects, then the first field
    of all samples, and so on. A part that is a whole object has the member "".

    A restore reads the whole record of each sample from ``packs[pack_of[i]]``: ``lengths[i]`` bytes
    from ``offsets[i]``.
    """

    request_id: str
    bucket: str
    recipe: str
    epoch: int
    # Only an address: the function has credentials in its settings.
    cache: str
    # Counted from the request's arrival; no sample is started later.
    expires_in_s: float
    keys: tuple[str, ...]
    versions: tuple[str, ...]
    # 16 bytes each. The function derives each id again, to check that both sides agree.
    ids: bytes
    kind: RequestKind = RequestKind.DECODE
    limits: Limits = field(default_factory=Limits)
    # The decoder's required fingerprint, or empty if the caller checked it. In a save, the records'
    # fingerprint.
    golden: str = ""
    function_version: str = ""  # required; empty if the caller has checked it
    store: str = ""  # address of the store, for all kinds but decode
    packs: tuple[str, ...] = ()
    pack_of: tuple[int, ...] = ()
    offsets: tuple[int, ...] = ()
    lengths: tuple[int, ...] = ()
    alias: str = ""  # of the source; ids are derived from it and from keys without prefix
    prefix: str = ""
    members: tuple[str, ...] = ()  # member names
    member_offsets: tuple[int, ...] = ()
    member_lengths: tuple[int, ...] = ()
    # From MEMBER_ENCODINGS or ROW_ENCODING. Empty if all members are stored as is.
    encodings: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """The number of samples."""
        return len(self.ids) // ID_BYTES

    def sample_id(self, index: int) -> bytes:
        """Return the id of a sample."""
        return self.ids[index * ID_BYTES : (index + 1) * ID_BYTES]

    @property
    def id_bucket(self) -> str:
        """The name of the bucket in ids."""
        return id_bucket(self.bucket, self.alias)

    @property
    def id_keys(self) -> list[str]:
        """The keys as they are used in ids."""
        return [key.removeprefix(self.prefix) for key in self.keys] if self.prefix else list(self.keys)

    def name_of(self, index: int) -> str:
        """Return the name of a sample or part for messages: the key, and the member if there is one."""
        is_member = self.members and self.members[index]
        return shown_name(self.keys[index], self.members[index]) if is_member else self.keys[index]

    def seeding_name(self, index: int) -> str:
        """Return the name that seeds random steps: the key, then NUL and the member if there is one."""
        is_member = self.members and self.members[index]
        return f"{self.keys[index]}\0{self.members[index]}" if is_member else self.keys[index]

    def named_field(self, index: int) -> str:
        """Return the name, for messages, of one part of a sample with fields."""
        part = index // self.count
        return f"field {(MAIN_FIELD, *self.fields)[part]!r}, {self.name_of(index)}"

    def to_mapping(self) -> dict[str, Any]:
        """Return the request as a mapping of JSON values, for any executor."""
        return {"super_request": REQUEST_VERSION, **mapping_of(self, _OPTIONAL)}

    def to_json(self) -> str:
        """Return the request as JSON text."""
        return json.dumps(self.to_mapping(), separators=(",", ":"))

    @classmethod
    def from_mapping(cls, event: dict[str, Any]) -> PrefetchRequest:
        """Check and convert parsed JSON. Raises ``ConfigError`` with a description of the problem."""
        request = message_in(
            cls,
            event,
            "request",
            "the function",
            version=REQUEST_VERSION,
            optional=_OPTIONAL,
            types={"RequestKind": RequestKind, "Limits": Limits},
        )
        count = request.count
        if not 1 <= count <= MAX_SAMPLES_PER_REQUEST:
            raise ConfigError(
                f"a prefetch request must contain 1 to {MAX_SAMPLES_PER_REQUEST} samples, not {count}"
            )
        if len(request.ids) % ID_BYTES:
            raise ConfigError(f"sample ids must be {ID_BYTES} bytes each; got {len(request.ids)} in total")
        _check_locations(request)
        _check_parts(request)
        checked_naming(request.alias or None, None, "in a prefetch request, ")
        if request.prefix and not (
            request.alias and all(key.startswith(request.prefix) for key in request.keys)
        ):
            raise ConfigError(
                "a prefetch request with a prefix needs an alias, and all keys must begin with the prefix"
            )
        texts = (request.request_id, request.bucket, request.recipe, request.cache, request.golden)
        lists = (*request.keys, *request.versions, *request.packs, *request.members)
        if clean_text(text := "".join((*texts, request.store, *lists))) != text:
            raise ConfigError(
                "a prefetch request contains a string with a lone surrogate, which UTF-8 cannot encode"
            )
        return request


@dataclass(frozen=True, slots=True)
class PrefetchResult:
    """The outcome of every sample of a request, in the same order, and totals of the work.

    Times are microseconds of work, so those of parallel threads add up. ``source_bytes`` includes what
    was fetched between members. ``offsets`` and ``lengths`` locate the record of each sample in
    ``pack``. The length is 0 for samples that are not in it, and without a pack all are empty.
    """

    request_id: str
    function_version: str
    cold_start: bool
    outcomes: tuple[str, ...]
    record_bytes: tuple[int, ...]  # bytes in the cache, of a record or a pointer
    # Reasons for outcomes other than cached, by the sample's index in the request.
    messages: dict[str, str] = field(default_factory=dict)
    fetch_us: int = 0
    decode_us: int = 0  # decoding and the other steps
    push_us: int = 0
    source_requests: int = 0  # GETs
    source_bytes: int = 0  # fetched
    duration_us: int = 0  # as measured by the function
    billed_us: int = 0  # 0 if unknown, as is memory_mb
    memory_mb: int = 0
    pack: str = ""
    offsets: tuple[int, ...] = ()
    lengths: tuple[int, ...] = ()
    store_trouble: str = ""  # why the store could not be written or read
    store_requests: int = 0  # requests to a store in S3
    store_bytes: int = 0  # bytes read or written

    def to_mapping(self) -> dict[str, Any]:
        """Return the result as a mapping of JSON values, which a handler returns."""
        values = mapping_of(self)
        return {"super_result": REQUEST_VERSION, **values, "messages": dict(self.messages)}

    @classmethod
    def from_mapping(cls, answer: dict[str, Any]) -> PrefetchResult:
        """Check and convert parsed JSON. Raises ``ConfigError`` with a description of the problem."""
        result = message_in(
            cls,
            answer,
            "result",
            "the coordinator",
            version=REQUEST_VERSION,
            count_max=_RESULT_NUMBER_MAX,
        )
        if len(result.record_bytes) != len(result.outcomes):
            raise ConfigError("the columns of a prefetch result differ in length")
        expected = len(result.outcomes) if result.pack else 0
        if not expected == len(result.offsets) == len(result.lengths):
            raise ConfigError(
                "a prefetch result must have as many offsets and lengths as samples if it has a pack, "
                "and otherwise none"
            )
        unknown = set(result.outcomes) - frozenset(Outcome)
        if unknown:
            raise ConfigError(f"unknown outcomes in a prefetch result: {reprlib.repr(sorted(unknown))}")
        numbered = all(index.isdecimal() and len(index) < _DIGITS_MAX for index in result.messages)
        if not numbered or len(result.messages) > len(result.outcomes):
            raise ConfigError("the messages of a prefetch result are not numbered by sample")
        texts = (result.function_version, result.pack, result.store_trouble)
        # Most results need no cleaning, so do not copy them.
        if result.messages or not "".join(texts).isascii():
            messages = {index: clean_text(message) for index, message in result.messages.items()}
            version, pack, trouble = map(clean_text, texts)
            result = replace(
                result, messages=messages, function_version=version, pack=pack, store_trouble=trouble
            )
        return result


def _check_locations(request: PrefetchRequest) -> None:
    is_restore = request.kind is RequestKind.RESTORE
    count = request.count if is_restore else 0
    if not count == len(request.pack_of) == len(request.offsets) == len(request.lengths):
        raise ConfigError(
            "a restore needs pack_of, offsets and lengths for each key; other requests must have none"
        )
    if bool(request.packs) != is_restore:
        raise ConfigError("a restore needs packs, and no other request may have any")
    if bool(request.store) != (request.kind is not RequestKind.DECODE):
        raise ConfigError(
            "requests of kind decode must have no store, and all others need one; this is of kind "
            f"{request.kind}"
        )
    if request.kind is RequestKind.SAVE and not request.golden:
        raise ConfigError("a save needs golden")
    used = set(request.pack_of)
    if len(set(request.packs)) != len(request.packs) or used != set(range(len(request.packs))):
        raise ConfigError(
            "a restore must list each pack once, and pack_of must refer to all of them and no others"
        )


def _check_parts(request: PrefetchRequest) -> None:
    """Check that the columns of a request match."""
    parts = request.count * (1 + len(request.fields))
    if not parts == len(request.versions) == len(request.keys):
        raise ConfigError(
            "a prefetch request must have as many keys and versions as ids, and as many again for each field"
        )
    named = [MAIN_FIELD, *map(checked_field, request.fields)]
    if len(set(named)) < len(named) or len(named) > MAX_FIELDS:
        raise ConfigError(f"a prefetch request must have at most {MAX_FIELDS} fields, with different names")
    count = len(request.keys) if request.members else 0
    if not count == len(request.members) == len(request.member_offsets) == len(request.member_lengths):
        raise ConfigError("a request for members needs a member, an offset and a length for each key")
    if request.encodings and len(request.encodings) != count:
        raise ConfigError("a request for members must have an encoding for every member, or none at all")
    used = set(request.encodings)
    rows = {encoding for encoding in used if is_row(encoding)}
    if unknown := used - rows - set(MEMBER_ENCODINGS):
        raise ConfigError(
            f"unknown encodings of members: {reprlib.repr(sorted(unknown))}; deploy one version of SUPER"
        )
    if request.members and not request.fields and not all(request.members):
        raise ConfigError(
            "a member must have a name; only in samples with fields may a part be a whole object"
        )
    columns = request.member_lengths, request.encodings or ("",) * count, request.members
    spans = zip(*columns, strict=True)
    lengths = [length for length, encoding, name in spans if name and encoding not in rows]
    if lengths and min(lengths) < 1:
        raise ConfigError("a member must have a length of 1 or more")
