"""``BatchRef``: everything a reader needs to turn one planned batch into tensors, small and picklable.

The sampler yields it, a DataLoader worker of any start method receives it. It carries no credentials, no
connection and no pixels. Before the first one, the sampler binds its dataset by a :class:`DatasetBinding`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from superdl.super_wire.errors import UsageError
from superdl.super_wire.ids import ID_BYTES
from superdl.super_wire.labels import unpack_labels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from superdl.super_wire.ids import Naming
    from superdl.super_wire.labels import Labels
    from superdl.super_wire.recipe import Recipe

__all__ = ["BatchRef", "Bindable", "DatasetBinding", "MixedRef", "Places"]


@dataclass(frozen=True, slots=True)
class Places:
    """Where in the packs of a store the records of a batch lie, for readers that see its directory.

    ``packs`` are names. The others hold a little-endian number for each sample, in order: ``pack_of``
    (uint32) the place of its pack in ``packs``, counted from 1, or 0 where the sample has no place;
    ``offsets`` (uint64) where in the pack its record begins; ``lengths`` (uint32) how long the whole record
    is.
    """

    packs: tuple[str, ...]
    pack_of: bytes
    offsets: bytes
    lengths: bytes

    @classmethod
    def of_page(cls, packs: Sequence[str], pack_of: bytes, offsets: bytes, lengths: bytes) -> Places:
        """A batch's places out of its page, whose ``packs`` its numbers count.

        It gets its own packs alone, since a batch travels to workers, and its page does not.

        Raises:
            ValueError: a number is of no pack of the page.
        """
        numbers, own = np.unique(np.frombuffer(pack_of, dtype="<u4"), return_inverse=True)
        if numbers[-1] > len(packs):
            raise ValueError(f"a place names pack {numbers[-1]} of {len(packs)}")
        if numbers[0] > 0:
            own = own + 1
        names = tuple(packs[number - 1] for number in numbers.tolist() if number)
        return cls(names, own.astype("<u4").tobytes(), offsets, lengths)


@dataclass(frozen=True, slots=True)
class BatchRef:
    """One batch of one rank's plan.

    ``sample_ids`` holds 16 bytes for each sample, in order; ``labels`` the labels' bytes in ``label_dtype``
    (:mod:`superdl.super_wire.labels`); ``padding`` one byte for each sample, 1 where the sample only
    fills up the tail of the epoch (empty: none does). ``repetitions`` holds a little-endian uint32 for each
    sample, how often it was drawn before in the epoch (empty: none was). ``keys`` names the samples for
    messages and may be empty where they did not fit into the page. ``cache`` is an address without
    credentials. Where the trainer sees the store's directory, ``store`` names it, and ``places`` say what of
    the batch is in its packs. ``seed`` is the sampler's, for transforms that have none of their own.
    ``alone``: no other rank, and no other dataset of a mix, has a part of the same step.
    """

    dataset_id: bytes
    job: str
    rank: int
    epoch: int
    position: int
    batch_id: bytes
    sample_ids: bytes
    labels: bytes
    label_dtype: str
    padding: bytes
    keys: tuple[str, ...]
    cache: str
    store: str = ""
    places: Places | None = None
    seed: int = 0
    repetitions: bytes = b""
    alone: bool = False

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.sample_ids) // ID_BYTES

    def label_array(self) -> Labels:
        """The labels, read-only: shape (samples,), also of named fields, or (samples, ...) of arrays;
        ``RaggedLabels`` where lists vary by sample.

        Raises:
            ConfigError: ``label_dtype`` is none that labels have, or there are not as many as samples.
        """
        return unpack_labels(self.labels, self.label_dtype, len(self))

    def padding_mask(self) -> NDArray[np.bool_]:
        """Which samples are padding, as an array of shape (samples,)."""
        if not self.padding:
            return np.zeros(len(self), dtype=np.bool_)
        return np.frombuffer(self.padding, dtype=np.bool_)

    def name_of(self, offset: int) -> str:
        """How a message names the sample at ``offset``: its key, else its id and the way to resolve it."""
        if self.keys and (key := self.keys[offset]):
            return key
        hex_id = self.sample_ids[offset * ID_BYTES : (offset + 1) * ID_BYTES].hex()
        return f"sample {hex_id} (its key: superdl stats --batch {self.batch_id.hex()})"


@dataclass(frozen=True, slots=True)
class MixedRef:
    """One batch of one rank of a mix: what of it is whose.

    ``parts`` has, for each dataset that has samples in it, its place in the mix and a batch of its own.
    """

    parts: tuple[tuple[int, BatchRef], ...]

    @property
    def epoch(self) -> int:
        """The epoch of the mix."""
        return self.parts[0][1].epoch

    @property
    def position(self) -> int:
        """Which batch of this rank's epoch, from 0."""
        return self.parts[0][1].position

    def __len__(self) -> int:
        """Number of samples."""
        return sum(len(ref) for _, ref in self.parts)

    def __lt__(self, other: object) -> bool:
        """Refuse: a ConcatDataset compares what it takes for the number of a sample."""
        raise UsageError(
            "this is a batch of a mix, and a ConcatDataset reads single samples: give the DataLoader "
            "SuperMix(...) of it, which reads whole batches, or use SuperLoader"
        )


@dataclass(frozen=True, slots=True)
class DatasetBinding:
    """What is known of a dataset once its source has been listed.

    ``classes`` is empty where a key list gives labels as numbers; the others are as in :class:`BatchRef`:
    ``store`` is empty unless this machine sees it. ``cache`` is empty too while no job is open.
    """

    dataset_id: bytes
    fingerprint: bytes
    size: int
    classes: tuple[str, ...]
    label_dtype: str
    cache: str
    store: str = ""


class Bindable(Protocol):
    """What a sampler needs of a dataset. ``coordinator`` is asked where nothing else names one."""

    coordinator: str | None
    warned: set[str]
    """What its user was warned of."""

    @property
    def source(self) -> str:
        """URL of the source."""

    @property
    def recipe(self) -> Recipe:
        """The work done on every sample."""

    @property
    def key_list(self) -> str | None:
        """URL of the key list, if there is one."""

    @property
    def naming(self) -> Naming:
        """What names its samples in ids, beside their keys."""

    @property
    def given_classes(self) -> tuple[str, ...]:
        """The names of the classes by their labels; empty: those that the listing finds."""

    @property
    def reads_straight(self) -> bool:
        """Whether it reads records out of the store's packs, where this machine sees them."""

    def bind(self, binding: DatasetBinding) -> None:
        """Take what the coordinator told; called again with the same or newer facts."""

    @property
    def bad_samples(self) -> tuple[Any, ...]:
        """The bad samples that its readers passed over until now."""

    def name_bad_samples(self) -> None:
        """Warn of bad samples that its readers in other processes met since the last call."""

    def ping_cache(self, cache: str) -> None:
        """Reach the cache with the dataset's own credentials, or raise a :class:`CacheError` in time."""
