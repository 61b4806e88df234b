"""Datasets registered by runs, and the listings of their sources."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from superdl.coordinator.core import DatasetFacts, runs_of
from superdl.super_wire.errors import SourceError, SuperError
from superdl.super_wire.ids import Naming, digest128
from superdl.super_wire.record import CHANGED_SINCE, HEADER_BYTES, LISTING, Tombstone

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from superdl.coordinator.catalog.catalog import Catalog
    from superdl.coordinator.catalog.state import Kept
    from superdl.super_wire.recipe import Recipe

# Expected size of a record without a fixed shape: a 500x400 image.
_DEFAULT_RECORD_BYTES = 600_000


@dataclass(slots=True)
class Listing:
    """A listing of a source, in progress or finished. ``listed`` is the number of samples found so far."""

    source: str
    key_list: str
    naming: Naming = field(default_factory=Naming)
    classes: tuple[str, ...] = ()
    task: asyncio.Task[None] | None = None
    listed: int = 0
    # True once all samples are listed and are being sorted and packed.
    packing: bool = False
    problem: str = ""
    # The catalog's file in the state and the end of the listing, or the earlier listing to reuse.
    kept: Kept | None = None
    catalog: Catalog | None = None
    error: SuperError | None = None
    ended_at_s: float = 0.0
    took_s: float = 0.0
    # Date and time in UTC, for display.
    ended_at: str = ""
    runs: set[str] = field(default_factory=set)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    cancelled: threading.Event = field(default_factory=threading.Event)

    @property
    def options(self) -> tuple[str, str, Naming, tuple[str, ...]]:
        """Return the source and the options of the listing."""
        return self.source, self.key_list, self.naming, self.classes

    @property
    def key(self) -> bytes:
        """Return a 16-byte digest of the source and the options of the listing."""
        return digest128(json.dumps(self.options).encode())

    @property
    def note(self) -> Tombstone:
        """Return the tombstone that readers receive while the listing is in progress."""
        so_far = f"it is being listed, with {self.listed:,} samples so far"
        return Tombstone(self.source, LISTING, so_far, permanent=False)

    @property
    def ended(self) -> bool:
        """Return whether the listing has produced a catalog or failed."""
        return self.catalog is not None or self.error is not None

    def dated(self, reason: str) -> str:
        """Add the time of the listing to the reason for a failure if the sample has changed since then."""
        return reason.replace(CHANGED_SINCE, f"{CHANGED_SINCE} at {self.ended_at}", 1)


@dataclass(slots=True)
class Dataset:
    """A listing combined with a recipe, as registered by a run."""

    dataset_id: bytes
    recipe: Recipe
    listing: Listing
    # Shape (samples, 16), once derived; always None for a random recipe.
    all_ids: NDArray[np.uint8] | None = None
    # Time of the run's last request for it, on the registry's clock, and the ids of the jobs that it opened.
    requested_at_s: float = 0.0
    jobs: set[str] = field(default_factory=set)
    run_id: str = ""
    # Whether the state has recorded the catalog that this run reads.
    noted: bool = False
    # A message for the user if the store has these samples under another directory.
    moved: str = ""

    @property
    def ready(self) -> bool:
        """Return whether the samples and their ids are known."""
        return self.listing.catalog is not None and (self.recipe.random or self.all_ids is not None)

    @property
    def catalog(self) -> Catalog:
        """Return the listed samples. Raises ``SuperError`` if the listing failed or is still in progress."""
        if self.listing.error is not None:
            raise self.listing.error
        if self.listing.catalog is None:
            raise SourceError(
                f"{self.listing.source} is still being listed ({self.listing.listed} samples so far)"
            )
        return self.listing.catalog

    @property
    def content(self) -> bytes:
        """Return a digest of everything that determines ids. Datasets with the same digest share records."""
        seed = self.recipe.augment_seed.to_bytes(8, "little", signed=True)
        return digest128(self.catalog.fingerprint, self.recipe.digest, seed)

    @property
    def record_bytes(self) -> int:
        """Return the length of a record in bytes, estimated unless the recipe determines the shape."""
        shape = self.recipe.output_shape
        return HEADER_BYTES + shape[0] * shape[1] * shape[2] if shape else _DEFAULT_RECORD_BYTES

    def facts(self, *, known_absent: bool, keeps_shards: bool = False) -> DatasetFacts:
        """Return what the core needs to know. ``known_absent`` means that the cache is known to be empty."""
        members = self.catalog.members
        is_kept = keeps_shards and not self.catalog.bucket.startswith("file://")
        # Functions read whole row groups, so group Parquet rows in requests even then.
        if members and is_kept and not members.are_rows.any():
            members = None
        return DatasetFacts(
            self.content,
            len(self.catalog),
            self.recipe.random,
            self.record_bytes,
            known_absent=known_absent,
            runs=runs_of(members.objects, members.offsets, members.lengths, whole=members.are_rows)
            if members
            else None,
        )

    def ids(self, indices: NDArray[np.int64], epoch: int) -> bytes:
        """Return the concatenated ids of samples in ``epoch``. The dataset must be ready."""
        if self.recipe.random:
            randomness = self.recipe.augment_seed, epoch
            return self.catalog.sample_ids(self.recipe.digest, randomness, indices, self.recipe.beside)
        if self.all_ids is None:
            raise RuntimeError(f"{self.listing.source}: ids were requested before they were derived")
        return self.all_ids[indices].tobytes()
