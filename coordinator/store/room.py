"""Room in the store: what packs take, how much they may, and which go first."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from superdl.super_wire.errors import StoreGoneError
from superdl.super_wire.store import IN_USE_S, is_bucket

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

__all__ = ["Room", "StoredPack", "room_bytes", "to_prune"]

_SHARE = 4
_KEPT_SHARE = 10
_MARGIN_SHARE = 16
_MARGIN_BYTES = 2**30
_FREED_SHARE = 32
_GIB = 2**30


@dataclass(frozen=True, slots=True)
class StoredPack:
    """What decides when a pack goes.

    Attributes:
        name: of the pack.
        bytes: its length.
        useless: another decoder's, or broken.
        used_s: when its collection was opened last, Unix time; 0 if nobody knows.
        live: the share of its records that a catalog still has, as far as that is known; else 1.
        wanted: whether a job that is open, here or elsewhere, reads its collection.
    """

    name: str
    bytes: int
    useless: bool
    used_s: float
    live: float = 1.0
    wanted: bool = False


class Room:
    """The packs of a store as far as this coordinator knows, and what they may take.

    Args:
        address: of the store.
        wanted_bytes: what it may take; 0 is a quarter of what a directory has and could have, and no bound
            in a bucket.
    """

    def __init__(self, address: str, wanted_bytes: int) -> None:
        self._address = address
        self._is_bucket = is_bucket(address)
        self._wanted_bytes = wanted_bytes
        self.bytes = wanted_bytes
        """What all packs may take; 0 in a bucket that nothing bounds."""
        self.sizes: dict[str, int] = {}
        self.used_bytes = 0
        """What all packs have together."""
        self.records: dict[str, int] = {}
        self.useless: set[str] = set()
        self.written_bytes = 0
        """By this coordinator's functions, since the room was measured last."""
        self.exhausted = False
        """Whether it was full still after what may go had gone."""

    @property
    def bounded(self) -> bool:
        """Whether anything bounds it."""
        return bool(self._wanted_bytes) or not self._is_bucket

    @property
    def excess_bytes(self) -> int:
        """What has to go before more is written, 0 if it may be; what is being written now has a margin."""
        most = self.bytes - min(self.bytes // _MARGIN_SHARE, _MARGIN_BYTES)
        is_full = self.bounded and self.used_bytes >= most
        return max(1, self.used_bytes - most + most // _FREED_SHARE) if is_full else 0

    @property
    def told(self) -> str:
        """How full it is, for people."""
        of = f" of {self.bytes / _GIB:.1f}" if self.bounded else ""
        return f"{self.used_bytes / _GIB:.1f}{of} GiB"

    @property
    def is_overdue(self) -> bool:
        """Whether room is to be made, or so much was written that it is to be measured again."""
        is_full = self.excess_bytes > 0 and not self.exhausted
        return is_full or (self.bounded and self.written_bytes > self.bytes // _MARGIN_SHARE)

    def found(self, packs: Mapping[str, int], before: Container[str]) -> None:
        """A listing has found these packs. What was not known ``before`` it was written while it was made."""
        since = {pack: size for pack, size in self.sizes.items() if pack not in before}
        self.sizes = {**packs, **since}
        self.used_bytes = sum(self.sizes.values())

    def wrote(self, pack: str, size: int, records: int) -> None:
        """A function has written a pack."""
        self.used_bytes += size - self.sizes.get(pack, 0)
        self.sizes[pack], self.records[pack] = size, records
        self.written_bytes += size

    def forget(self, packs: Iterable[str]) -> None:
        """These packs are removed."""
        for pack in packs:
            self.used_bytes -= self.sizes.pop(pack, 0)
            self.records.pop(pack, None)
            self.useless.discard(pack)

    def measure(self) -> None:
        """See how much the packs may take now; blocks.

        Raises:
            StoreGoneError: the directory is not there.
        """
        if not self._is_bucket:
            try:
                disk = shutil.disk_usage(self._address)
            except OSError as error:
                raise StoreGoneError(f"the store {self._address} cannot be reached: {error}") from error
            self.bytes = room_bytes(self._wanted_bytes, self.used_bytes, disk.free, disk.total)
        self.written_bytes = 0

    def live(self, live: Mapping[str, int], listed: Iterable[Iterable[str]]) -> dict[str, float]:
        """The share of packs' records that open catalogs have, of packs whose catalogs list all of a bucket.

        Another folder of a bucket of S3 may be another's dataset; of a directory there is no other.
        """
        names = {name for packs in listed for name in packs if self.records.get(name)}
        return {name: live.get(name, 0) / self.records[name] for name in names}

    def to_prune(
        self, used: Mapping[str, float], reading: Container[str], live: Mapping[str, float], now: float
    ) -> list[str]:
        """Which packs go now; none, while there is room.

        Args:
            used: when collections were opened last.
            reading: collections that jobs have open here.
            live: the share of packs' records that catalogs still have, where that is known.
            now: Unix time.
        """
        packs = [
            StoredPack(
                name,
                size,
                name in self.useless,
                used_s := used.get(collection := name.partition("-")[0], 0.0),
                live.get(name, 1.0),
                collection in reading or now - used_s < IN_USE_S,
            )
            for name, size in self.sizes.items()
        ]
        return to_prune(packs, self.excess_bytes, self.used_bytes - self.bytes)


def room_bytes(wanted_bytes: int, stored_bytes: int, free_bytes: int, disk_bytes: int) -> int:
    """What a store in a directory may take: ``wanted_bytes``, or a quarter of what it has and could have.

    Never the last tenth of the disk.
    """
    share = wanted_bytes or (stored_bytes + free_bytes) // _SHARE
    return max(0, min(share, stored_bytes + free_bytes - disk_bytes // _KEPT_SHARE))


def to_prune(packs: Iterable[StoredPack], bytes_to_free: int, bytes_too_many: int = 0) -> list[str]:
    """Which packs go, so that so many bytes do: useless ones, then those whose samples are in no catalog any
    more, then collections that nobody has opened for longest. What open jobs read goes last, and stays as far
    as the rest frees ``bytes_too_many``: room for more of what they read is not worth any of it.
    """

    def order(pack: StoredPack) -> tuple[int, float, str]:
        if pack.useless:
            return 0, pack.used_s, pack.name
        if pack.live < 0.5:  # noqa: PLR2004  # most of it is of no use
            return 1, pack.live, pack.name
        return (3, pack.live, pack.name) if pack.wanted else (2, pack.used_s, pack.name)

    chosen: list[str] = []
    for pack in sorted(packs, key=order):
        if (bytes_too_many if order(pack)[0] == 3 else bytes_to_free) <= 0:  # noqa: PLR2004  # the last group
            break
        chosen.append(pack.name)
        bytes_to_free -= pack.bytes
        bytes_too_many -= pack.bytes
    return chosen
