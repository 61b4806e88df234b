"""Prefetch requests and results, the input and output of functions. All fields are checked."""

from __future__ import annotations

import enum
import json
import reprlib
from dataclasses import dataclass, field, replace
from typing import Any

from superdl.super_wire.display import clean_text
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.field_checks import mapping_of, message_in
from superdl.super_wire.ids import (
    ID_BYTES,
    MAIN_FIELD,
    MAX_FIELDS,
    checked_field,
    checked_naming,
    id_bucket,
    shown_name,
)

# Requests are JSON, in columns, because AWS Lambda's Invoke API transfers JSON.
REQUEST_VERSION = 6
MAX_SAMPLES_PER_REQUEST = 4096

# Encodings of a member: as is, or a raw deflate stream, as in zip archives.
MEMBER_ENCODINGS = ("", "deflate")
# Encoding of a row of a Parquet file: this prefix and the path of a column. The member's offset is the
# index of the row group, its length the index of the row in that group, both from 0.
ROW_ENCODING = "parquet:"

# Limit for numbers in a result, which the coordinator adds up.
_RESULT_NUMBER_MAX = 2**40
_DIGITS_MAX = 10
_OPTIONAL = frozenset({"fields", "members", "member_offsets", "member_lengths", "encodings"})


def is_row(encoding: str) -> bool:
    """Return whether a member with this encoding is a row of a Parquet file."""
    return encoding.startswith(ROW_ENCODING) and encoding != ROW_ENCODING


class RequestKind(enum.StrEnum):
    """The work that a function does on the samples of a request. Values are the names on the wire."""

    DECODE = "decode"  # fetch and decode the samples, and push records into the cache
    DECODE_TO_STORE = "decode_to_store"  # the same, and write a pack of the records that the cache accepted
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

    CACHED = "cached"  # the cache has acknowledged the record
    TOMBSTONE = "tombstone"  # the sample can never be produced, and the cache has a permanent tombstone
    MISSING = "missing"  # the object does not exist
    CHANGED = "changed"  # the object does not have the catalog's version
    REFUSED = "refused"  # the source denies access
    UNAVAILABLE = "unavailable"  # the source throttles or does not respond; not counted as an attempt
    SOURCE_ERROR = "source_error"  # the source failed otherwise
    CACHE_ERROR = "cache_error"  # decoded, but the cache did not accept it
    CACHE_FULL = "cache_full"  # decoded, but the cache is out of memory
    STEP_ERROR = "step_error"  # a custom step raised an exception
    EXPIRED = "expired"  # the request expired before the sample was tried
    TIMED_OUT = "timed_out"  # decoding took too long; a faster machine may succeed
    NOT_STORED = "not_stored"  # the store has no valid record at the location
    STORE_ERROR = "store_error"  # the store did not respond or refused; the record may exist
    NOT_CACHED = "not_cached"  # the cache no longer has a valid record to save


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits for one object: the encoded size in bytes and the decoded size in pixels."""

    object_bytes: int = 256 * 2**20
    image_pixels: int = 178_956_970


@dataclass(frozen=True, slots=True)
class PrefetchRequest:
    """The samples for one invocation, in parallel columns.

    If samples are *members* of objects, sample ``i`` consists of ``member_lengths[i]`` bytes at
    ``member_offsets[i]`` of its object. If samples have additional ``fields``, the columns for
    keys, versions and members describe *parts*: first the main objects of all samples, then the first
    field of each, and so on. The member is "" for a part that is a whole object.

    A restore reads the record of sample ``i`` from ``packs[pack_of[i]]``: ``lengths[i]`` bytes at
    ``offsets[i]``.
    """

    request_id: str
    bucket: str
    recipe: str
    epoch: int
    cache: str  # its address; the function's settings have the credentials
    # Time from the request's arrival after which no sample is started.
    expires_in_s: float
    keys: tuple[str, ...]
    versions: tuple[str, ...]
    # 16 bytes each. The function derives them again, to check that both sides agree.
    ids: bytes
    kind: RequestKind = RequestKind.DECODE
    limits: Limits = field(default_factory=Limits)
    # The decoder's required fingerprint, empty if the caller has checked it. In a save, that of the records.
    golden: str = ""
    function_version: str = ""  # required; empty if the caller has checked it
    store: str = ""  # the store's address, for all kinds but decode
    packs: tuple[str, ...] = ()
    pack_of: tuple[int, ...] = ()
    offsets: tuple[int, ...] = ()
    lengths: tuple[int, ...] = ()
    alias: str = ""  # of the source; ids contain it, and keys without the prefix
    prefix: str = ""
    members: tuple[str, ...] = ()  # their names
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
        """The bucket's name as used in ids."""
        return id_bucket(self.bucket, self.alias)

    @property
    def id_keys(self) -> list[str]:
        """The keys as used in ids."""
        return [key.removeprefix(self.prefix) for key in self.keys] if self.prefix else list(self.keys)

    def name_of(self, index: int) -> str:
        """Return a sample's or part's name for messages: the key, and the member if it has one."""
        is_member = self.members and self.members[index]
        return shown_name(self.keys[index], self.members[index]) if is_member else self.keys[index]

    def seeding_name(self, index: int) -> str:
        """Return the name that seeds random steps: the key, followed by NUL and the member if it has one."""
        is_member = self.members and self.members[index]
        return f"{self.keys[index]}\0{self.members[index]}" if is_member else self.keys[index]

    def named_field(self, index: int) -> str:
        """Return a part's field and name for messages."""
        part = index // self.count
        return f"field {(MAIN_FIELD, *self.fields)[part]!r}, {self.name_of(index)}"

    def to_mapping(self) -> dict[str, Any]:
        """Return the request as a mapping of JSON values."""
        return {"super_request": REQUEST_VERSION, **mapping_of(self, _OPTIONAL)}

    def to_json(self) -> str:
        """Return the request as JSON text."""
        return json.dumps(self.to_mapping(), separators=(",", ":"))

    @classmethod
    def from_mapping(cls, event: dict[str, Any]) -> PrefetchRequest:
        """Create a request from parsed JSON. Raises ``ConfigError`` if it is invalid."""
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
            raise ConfigError(f"sample ids have {ID_BYTES} bytes each, not {len(request.ids)} in total")
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
                "a prefetch request contains text with a lone surrogate, which UTF-8 cannot encode"
            )
        return request


@dataclass(frozen=True, slots=True)
class PrefetchResult:
    """The outcome of every sample of a request, in the same order, and the totals of the work done.

    Times are in microseconds, summed over parallel threads. ``source_bytes`` includes bytes fetched
    between members. ``offsets`` and ``lengths`` locate each sample's record in ``pack``. A length of 0
    means that the record is not in the pack. Without a pack, both columns are empty.
    """

    request_id: str
    function_version: str
    cold_start: bool
    outcomes: tuple[str, ...]
    record_bytes: tuple[int, ...]  # size of the record or pointer in the cache
    # Reasons for outcomes other than cached, by the sample's index.
    messages: dict[str, str] = field(default_factory=dict)
    fetch_us: int = 0
    decode_us: int = 0  # decoding and the other steps
    push_us: int = 0
    source_requests: int = 0  # GETs
    source_bytes: int = 0  # fetched
    duration_us: int = 0  # measured by the function
    billed_us: int = 0  # 0 if unknown
    memory_mb: int = 0  # 0 if unknown
    pack: str = ""
    offsets: tuple[int, ...] = ()
    lengths: tuple[int, ...] = ()
    store_trouble: str = ""  # the reason for a failure to write or read the store
    store_requests: int = 0  # requests to a store in S3
    store_bytes: int = 0  # bytes read or written

    def to_mapping(self) -> dict[str, Any]:
        """Return the result as a mapping of JSON values."""
        values = mapping_of(self)
        return {"super_result": REQUEST_VERSION, **values, "messages": dict(self.messages)}

    @classmethod
    def from_mapping(cls, mapping: dict[str, Any]) -> PrefetchResult:
        """Create a result from parsed JSON. Raises ``ConfigError`` if it is invalid."""
        result = message_in(
            cls,
            mapping,
            "result",
            "the coordinator",
            version=REQUEST_VERSION,
            count_max=_RESULT_NUMBER_MAX,
        )
        if len(result.record_bytes) != len(result.outcomes):
            raise ConfigError("a prefetch result must have as many record_bytes as outcomes")
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
        # Most results contain no text to clean, so do not copy them.
        if result.messages or not "".join(texts).isascii():
            messages = {index: clean_text(message) for index, message in result.messages.items()}
            version, pack, store_trouble = map(clean_text, texts)
            result = replace(
                result, messages=messages, function_version=version, pack=pack, store_trouble=store_trouble
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
        raise ConfigError("every member must have a name, except for whole objects in samples with fields")
    columns = request.member_lengths, request.encodings or ("",) * count, request.members
    spans = zip(*columns, strict=True)
    lengths = [length for length, encoding, name in spans if name and encoding not in rows]
    if lengths and min(lengths) < 1:
        raise ConfigError("a member must have a length of 1 or more")
