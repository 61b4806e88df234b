"""Verifies a store: every pack's index, and for a share of the records header, hash and pixels.

A record names its sample by id alone. So the source is listed, ids are derived from its keys, and what is
found is fetched and decoded again by the function's own code. Where that cannot be (the source is not to be
reached, the object has changed, another decoder wrote the pack), header and hash are checked alone, and the
reason is told.
"""

from __future__ import annotations

import math
import os
from collections import defaultdict
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from superdl.coordinator.catalog import list_objects, list_source, parse_source
from superdl.coordinator.store import read_indexes, threads
from superdl.store.contents import collection_name
from superdl.super_wire.errors import (
    ConfigError,
    RecordError,
    StoreError,
    StoreFormatError,
    StoreGoneError,
    SuperError,
)
from superdl.super_wire.ids import ALIAS_SCHEME, Naming, id_bucket, sample_ids, split_ids
from superdl.super_wire.recipe import Recipe
from superdl.super_wire.record import HEADER_BYTES, parse_header
from superdl.super_wire.record_kinds import pack_sample
from superdl.super_wire.request import Limits, Outcome, PrefetchRequest
from superdl.super_wire.store import check_record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from superdl.coordinator.catalog import Source
    from superdl.lambda_prefetch.transforms import Program
    from superdl.super_wire.ids import Versions
    from superdl.super_wire.objects import Bucket
    from superdl.super_wire.record import Header
    from superdl.super_wire.store import PackIndex, PackMeta, Store

__all__ = ["LEAST", "Verification", "Wrong", "verify"]

LEAST = 16
"""So many records of each collection are looked at, however small the share."""

_AT_A_TIME = 64  # records of one pack that are in memory at once
_LISTED_AT_A_TIME = 8192


@dataclass(frozen=True, slots=True)
class Wrong:
    """A record that is not what it says, or with an empty ``sample`` a pack that is none."""

    pack: str
    sample: str
    key: str
    why: str


@dataclass(slots=True)
class Verification:
    """What was seen. ``checked`` records had header and hash looked at, ``decoded`` ones of them their bytes
    compared; ``not_decoded`` says why the others were not, with how many these are.
    """

    packs: int = 0
    records: int = 0
    checked: int = 0
    decoded: int = 0
    not_decoded: dict[str, int] = field(default_factory=dict)
    wrong: list[Wrong] = field(default_factory=list)

    @property
    def wrong_packs(self) -> list[str]:
        """The packs that hold something wrong."""
        return sorted({one.pack for one in self.wrong})

    def to_mapping(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)


def verify(
    store: Store,
    decoder: str,
    *,
    share: float = 0.01,
    sources: Sequence[str] = (),
    key_list: str | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Verification:
    """Look at a share of each collection's records, drawn at random, and at the index of every pack.

    Args:
        store: is only read.
        decoder: the fingerprint of this machine's decoder.
        share: of the records, 0 to 1; at least :data:`LEAST` of each collection.
        sources: to list for keys, for the buckets that they are of; other buckets are listed whole. Of what
            has an alias in place of a bucket, all of them are listed.
        key_list: of the one source, for samples that are members or have fields.
        tell: gets a line now and then.
    """
    seen = Verification()
    collections: dict[str, dict[str, PackIndex]] = defaultdict(dict)
    packs = store.packs()
    for name, index in read_indexes(store, packs):
        if isinstance(index, StoreFormatError):
            seen.wrong.append(Wrong(name, "", "", str(index)))
        elif isinstance(index, StoreError):  # another user's, perhaps
            tell(f"not verified: {index}")
        else:
            collections[collection_name(name)][name] = index
    tell(f"{len(packs):,} indexes read")
    seen.packs = len(packs)
    keys = _Keys(sources, key_list, tell)
    for indexes in collections.values():
        seen.records += sum(len(index.entries) for index in indexes.values())
        drawn = _drawn(indexes, share)
        for found in _looked_at(store, drawn, decoder, keys) if drawn else ():
            seen.checked += 1
            if isinstance(found, Wrong):
                seen.wrong.append(found)
            elif found:
                seen.not_decoded[found] = seen.not_decoded.get(found, 0) + 1
            else:
                seen.decoded += 1
        tell(f"{seen.checked:,} records checked, {seen.decoded:,} of them decoded again")
    return seen


def _drawn(indexes: dict[str, PackIndex], share: float) -> dict[str, PackIndex]:
    """A share of all records, as indexes of their packs."""
    counts = [len(index.entries) for index in indexes.values()]
    count = sum(counts)
    places = np.random.default_rng().choice(
        count, min(count, max(LEAST, math.ceil(share * count))), replace=False
    )
    is_drawn = np.zeros(count, dtype=bool)
    is_drawn[places] = True
    masks = np.split(is_drawn, np.cumsum(counts)[:-1])
    return {
        name: replace(index, entries=index.entries[mask])
        for (name, index), mask in zip(indexes.items(), masks, strict=True)
        if mask.any()
    }


class _Listed(NamedTuple):
    """The parts that a sample is made of, as a request names them."""

    bucket: str
    key: str
    parts: dict[str, Any]


class _Keys:
    """Finds keys and versions of samples by listing; a source is listed once, for all its recipes."""

    def __init__(self, sources: Sequence[str], key_list: str | None, tell: Callable[[str], None]) -> None:
        if key_list and len(sources) != 1:
            raise ConfigError("a key list is of one source: give --source too, once")
        self._tell, self._key_list = tell, key_list
        self._sources = [parse_source(source) for source in sources]
        self._listings: dict[tuple[str, str], Any] = {}

    def of(self, bucket: str, recipe: Recipe, wanted: set[bytes]) -> dict[bytes, _Listed]:
        """The object of each wanted id that is listed; ``SuperError`` if nothing is listed."""
        named = bucket.startswith(ALIAS_SCHEME)
        sources = [source for source in self._sources if named or id_bucket(source.bucket, "") == bucket]
        if named and not sources:
            raise ConfigError(f"{bucket} is a name: say by --source where its objects lie")
        sources = sources or [parse_source(bucket)]
        found: dict[bytes, _Listed] = {}
        if recipe.beside and not self._key_list:
            raise ConfigError("its samples have fields: say by --source and --key-list which")
        for by in ("times", "digests") if self._key_list else ():
            found = found or self._in_list(bucket, sources[0], by, recipe, wanted)
        if recipe.beside or found:
            return found
        for source in sources:
            found |= self._found(bucket, source, "times", recipe, wanted)
        for source in sources if not found else ():
            if source.is_file:
                found |= self._found(bucket, source, "digests", recipe, wanted)
        return found

    def _in_list(
        self, bucket: str, source: Source, by: Versions, recipe: Recipe, wanted: set[bytes]
    ) -> dict[bytes, _Listed]:
        if (source.url, f"{by} {self._key_list}") not in self._listings:
            self._tell(f"listing {source.url} by {self._key_list}")
            alias = bucket.removeprefix(ALIAS_SCHEME) if bucket.startswith(ALIAS_SCHEME) else ""
            catalog = list_source(
                source.url, self._key_list, naming=Naming(alias, by if source.is_file else "")
            )
            self._listings[source.url, f"{by} {self._key_list}"] = catalog
        catalog = self._listings[source.url, f"{by} {self._key_list}"]
        found = {}
        for at, one in enumerate(split_ids(catalog.sample_ids(recipe.digest, fields=recipe.beside))):
            if one in wanted:
                parts = catalog.part_columns(np.array([at]), recipe.beside)
                found[one] = _Listed(catalog.bucket, catalog.names_at(np.array([at]))[0].decode(), parts)
        return found

    def _found(
        self, bucket: str, source: Source, by: Versions, recipe: Recipe, wanted: set[bytes]
    ) -> dict[bytes, _Listed]:
        if (source.url, by) not in self._listings:
            self._tell(f"listing {source.url}" + (", and reading its files" if by == "digests" else ""))
            self._listings[source.url, by] = list_objects(source.url, naming=Naming(versions=by))
        keys, versions = self._listings[source.url, by]
        skipped = len(source.prefix.encode()) if bucket.startswith(ALIAS_SCHEME) else 0
        found: dict[bytes, _Listed] = {}
        for at in range(0, len(keys), _LISTED_AT_A_TIME):
            places = np.arange(at, min(at + _LISTED_AT_A_TIME, len(keys)))
            some, theirs = keys.take(places), versions.take(places)
            ids = split_ids(sample_ids(bucket, [key[skipped:] for key in some], theirs, recipe.digest))
            found |= {
                one: _Listed(
                    source.bucket, key.decode(), {"keys": (key.decode(),), "versions": (version.decode(),)}
                )
                for one, key, version in zip(ids, some, theirs, strict=True)
                if one in wanted
            }
        return found


@dataclass(frozen=True, slots=True)
class _Maker:
    """Makes samples of one collection as the function does; ``found`` has their parts by id, ``sources``
    reads these by bucket, ``names`` are of their fields.
    """

    program: Program
    names: tuple[str, ...]
    sources: dict[str, Bucket]
    found: dict[bytes, _Listed]

    def make(self, sample: bytes) -> tuple[Header, memoryview]:
        """Header and payload of a sample."""
        from superdl.lambda_prefetch.members import read_alone

        bucket, _, parts = self.found[sample]
        request = PrefetchRequest("", bucket, "", 0, "", 0.0, ids=(sample.hex(),), **parts)
        made = [
            self.program.make(read_alone(request, part, self.sources[bucket]), request.seeding_name(0), part)
            for part in range(len(request.keys))
        ]
        arrays: Any = dict(zip(self.names, made, strict=True)) if self.names else made[0]
        header, payload = pack_sample(arrays, sample)
        return parse_header(header), payload


def _maker_of(meta: PackMeta, keys: _Keys, wanted: set[bytes]) -> _Maker | str:
    """What makes these samples again; or why that cannot be."""
    from superdl.lambda_prefetch.decode import set_pillows_bounds
    from superdl.lambda_prefetch.handler import open_source
    from superdl.lambda_prefetch.settings import FunctionSettings
    from superdl.lambda_prefetch.transforms import Program

    set_pillows_bounds()
    try:
        recipe, settings = Recipe.from_json(meta.recipe), FunctionSettings.from_environment()
        # As a local function of one's own is started: links may lead wherever this user may read.
        settings = replace(settings, file_roots=settings.file_roots or ("/",))
        program = Program(
            recipe,
            bucket=meta.bucket,
            epoch=0,
            limit_pixels=Limits().image_pixels,
            step_modules=settings.step_modules,
        )
        found = keys.of(meta.bucket, recipe, wanted)
        buckets = {one.bucket for one in found.values()}
        return _Maker(
            program, tuple(recipe.parts), {one: open_source(one, settings) for one in buckets}, found
        )
    except SuperError as error:
        return str(error)


def _looked_at(store: Store, drawn: dict[str, PackIndex], decoder: str, keys: _Keys) -> Iterator[Wrong | str]:
    """For each drawn record of a collection what is wrong, or why it was not decoded again; empty if it was.

    Several packs are looked at at a time.
    """
    ids = {bytes(one) for index in drawn.values() for one in index.entries["id"].tolist()}
    maker = _maker_of(next(iter(drawn.values())).meta, keys, ids)

    def look(item: tuple[str, PackIndex]) -> list[Wrong | str]:
        name, index = item
        theirs = index.meta.fingerprint
        other = f"decoder {theirs[:8]} wrote it, this machine has {decoder[:8]}" if theirs != decoder else ""
        entries = np.sort(index.entries, order="offset")
        found: list[Wrong | str] = []
        for at in range(0, len(entries), _AT_A_TIME):
            some = entries[at : at + _AT_A_TIME]
            try:
                records = store.read_many(
                    name, list(zip(*(some[of].tolist() for of in ("offset", "bytes")), strict=True))
                )
            except StoreGoneError:
                break  # somebody dropped it meanwhile
            for one, record in zip(some["id"].tolist(), records, strict=True):
                found.append(_judged(name, bytes(one), record, other or maker))
        return found

    with threads(len(os.sched_getaffinity(0))) as pool:
        yield from chain.from_iterable(pool.map(look, drawn.items()))


def _judged(pack_name: str, sample: bytes, record: bytes, maker: _Maker | str) -> Wrong | str:
    from superdl.lambda_prefetch.sources import SampleFailedError

    listed = None if isinstance(maker, str) else maker.found.get(sample)
    key = listed.key if listed else ""
    try:
        kept = check_record(record, sample)
        if isinstance(maker, str):
            return maker
        if not key:
            return "the source lists no such object, or it has changed"
        made, payload = maker.make(sample)
    except RecordError as error:
        why = str(error)
    except SampleFailedError as error:
        if error.outcome is not Outcome.TOMBSTONE:
            return f"the object could not be decoded: {error.outcome.value}"
        why = f"now it cannot be decoded: {error.why}"
    else:
        why = "" if payload == memoryview(record)[HEADER_BYTES:] else "decoded again, it has other bytes"
        if (made.dtype, made.shape) != (kept.dtype, kept.shape):
            why = f"it is {kept.dtype} {kept.shape}; decoded again {made.dtype} {made.shape}"
    return Wrong(pack_name, sample.hex(), key, why) if why else ""
