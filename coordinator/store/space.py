"""Space in a store: pack sizes, the size limit, and the order in which packs are removed."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from superdl.super_wire.errors import StoreGoneError
from superdl.super_wire.store import IN_USE_S, is_bucket

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

_SHARE = 4
_KEPT_SHARE = 10
_MARGIN_SHARE = 16
_MARGIN_BYTES = 2**30
_FREED_SHARE = 32
_GIB = 2**30


@dataclass(frozen=True, slots=True)
class StoredPack:
    """The properties of a pack that determine when it is removed."""

    name: str
    bytes: int
    useless: bool  # whether it is corrupt or was written by another decoder
    used_s: float  # Unix time when its collection was last opened; 0 if unknown
    live: float = 1.0  # share of its records that are still in a catalog; 1 if unknown
    in_use: bool = False  # whether an open job, here or elsewhere, reads its collection


class Room:
    """A store's packs and their size limit, which defaults to a quarter of the used and free space."""

    def __init__(self, address: str, max_bytes: int) -> None:
        self._address = address
        self._is_bucket = is_bucket(address)
        self._max_bytes = max_bytes
        # The limit of all packs, or 0 in a bucket without a limit.
        self.bytes = max_bytes
        self.sizes: dict[str, int] = {}
        self.used_bytes = 0
        self.records: dict[str, int] = {}
        self.useless: set[str] = set()
        # What this coordinator's functions wrote since the last measurement.
        self.written_bytes = 0
        # Whether the store is still full after everything removable was removed.
        self.exhausted = False

    @property
    def bounded(self) -> bool:
        """Return whether there is a limit."""
        return bool(self._max_bytes) or not self._is_bucket

    @property
    def excess_bytes(self) -> int:
        """Return the number of bytes to free before writing more, with a margin for packs in progress."""
        most = self.bytes - min(self.bytes // _MARGIN_SHARE, _MARGIN_BYTES)
        is_full = self.bounded and self.used_bytes >= most
        return max(1, self.used_bytes - most + most // _FREED_SHARE) if is_full else 0

    @property
    def usage(self) -> str:
        """Return the used and maximum sizes for display."""
        of = f" of {self.bytes / _GIB:.1f}" if self.bounded else ""
        return f"{self.used_bytes / _GIB:.1f}{of} GiB"

    @property
    def is_overdue(self) -> bool:
        """Return whether it is time to free space, or to measure it again after many writes."""
        is_full = self.excess_bytes > 0 and not self.exhausted
        return is_full or (self.bounded and self.written_bytes > self.bytes // _MARGIN_SHARE)

    def adopt(self, packs: Mapping[str, int], before: Container[str]) -> None:
        """Adopt a listing of packs. Known packs that are not in ``before`` are newer and are kept."""
        since = {pack: size for pack, size in self.sizes.items() if pack not in before}
        self.sizes = {**packs, **since}
        self.used_bytes = sum(self.sizes.values())

    def add(self, pack: str, size: int, records: int) -> None:
        """Add a pack written by a function."""
        self.used_bytes += size - self.sizes.get(pack, 0)
        self.sizes[pack], self.records[pack] = size, records
        self.written_bytes += size

    def forget(self, packs: Iterable[str]) -> None:
        """Forget removed packs."""
        for pack in packs:
            self.used_bytes -= self.sizes.pop(pack, 0)
            self.records.pop(pack, None)
            self.useless.discard(pack)

    def measure(self) -> None:
        """Measure the available space. Blocks. Raises ``StoreGoneError`` if the directory is missing."""
        if not self._is_bucket:
            try:
                disk = shutil.disk_usage(self._address)
            except OSError as error:
                raise StoreGoneError(f"the store {self._address} cannot be reached: {error}") from error
            self.bytes = room_bytes(self._max_bytes, self.used_bytes, disk.free, disk.total)
        self.written_bytes = 0

    def live(self, live: Mapping[str, int], listed: Iterable[Iterable[str]]) -> dict[str, float]:
        """Return the share of each pack's records that are in open catalogs, for packs in ``listed``.

        ``live`` maps pack names to the number of such records.
        """
        names = {name for packs in listed for name in packs if self.records.get(name)}
        return {name: live.get(name, 0) / self.records[name] for name in names}

    def to_prune(
        self, used: Mapping[str, float], reading: Container[str], live: Mapping[str, float], now: float
    ) -> list[str]:
        """Return the packs to remove, or none if there is enough room.

        Args:
            used: Unix time when each collection was last opened.
            reading: collections that this coordinator's jobs have open.
            live: the share of each pack's records that are still in a catalog, if known.
            now: the current Unix time.
        """
        packs = [
            StoredPack(
                name,
                size,
                name in self.useless,
                used_s := used.get(collection := name.partition("-")[0], 0.0),
                live.get(name, 1.0),
                # Other coordinators mark the collections that their jobs read.
                collection in reading or now - used_s < IN_USE_S,
            )
            for name, size in self.sizes.items()
        ]
        return to_prune(packs, self.excess_bytes, self.used_bytes - self.bytes)


def room_bytes(max_bytes: int, stored_bytes: int, free_bytes: int, disk_bytes: int) -> int:
    """Return a directory's limit: ``max_bytes``, or a quarter of its used plus free bytes if that is 0."""
    share = max_bytes or (stored_bytes + free_bytes) // _SHARE
    # The last tenth of the disk is never used.
    return max(0, min(share, stored_bytes + free_bytes - disk_bytes // _KEPT_SHARE))


def to_prune(packs: Iterable[StoredPack], bytes_to_free: int, bytes_too_many: int = 0) -> list[str]:
    """Choose packs to remove in order to free ``bytes_to_free``.

    Packs that open jobs are reading are removed only to free ``bytes_too_many``.
    """

    def order(pack: StoredPack) -> tuple[int, float, str]:
        # First useless packs, then packs whose samples have left the catalog, then the least recently opened.
        if pack.useless:
            return 0, pack.used_s, pack.name
        if pack.live < 0.5:  # noqa: PLR2004  # mostly unused
            return 1, pack.live, pack.name
        return (3, pack.live, pack.name) if pack.in_use else (2, pack.used_s, pack.name)

    chosen: list[str] = []
    for pack in sorted(packs, key=order):
        # It is not worth losing data to make room for more of it.
        if (bytes_too_many if order(pack)[0] == 3 else bytes_to_free) <= 0:  # noqa: PLR2004  # the last group
            break
        chosen.append(pack.name)
        bytes_to_free -= pack.bytes
        bytes_too_many -= pack.bytes
    return chosen
