"""``BatchRef``: everything that a reader needs to turn a planned batch into tensors."""

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


@dataclass(frozen=True, slots=True)
class Places:
    """The locations of a batch's records in packs, as columns with one little-endian number per sample."""

    packs: tuple[str, ...]  # pack names
    pack_of: bytes  # uint32, the pack's number in packs from 1, or 0 if the record is in none
    offsets: bytes  # uint64, the record's offset in its pack in bytes
    lengths: bytes  # uint32, the record's size in bytes

    @classmethod
    def of_page(cls, packs: Sequence[str], pack_of: bytes, offsets: bytes, lengths: bytes) -> Places:
        """Return the locations for one of a page's batches. ``pack_of`` refers to the page's ``packs``."""
        numbers, own = np.unique(np.frombuffer(pack_of, dtype="<u4"), return_inverse=True)
        if numbers[-1] > len(packs):
            raise ValueError(f"a location refers to pack {numbers[-1]}, but the page lists {len(packs)}")
        if numbers[0] > 0:  # every record is in a pack, but numbers still start at 1
            own = own + 1
        # Workers receive the batch without its page, so keep the names of its own packs.
        names = tuple(packs[number - 1] for number in numbers.tolist() if number)
        return cls(names, own.astype("<u4").tobytes(), offsets, lengths)


# It contains no credentials, connections or pixels, so workers of any start method can receive it.
@dataclass(frozen=True, slots=True)
class BatchRef:
    """A planned batch for one rank."""

    dataset_id: bytes
    job: str
    rank: int
    epoch: int
    position: int
    batch_id: bytes
    sample_ids: bytes  # 16 bytes per sample, in order
    labels: bytes  # in label_dtype, see super_wire.labels
    label_dtype: str
    padding: bytes  # one byte per sample, 1 for padding at the end of the epoch; empty if there is none
    keys: tuple[str, ...]  # for messages; empty if they do not fit into the page
    cache: str  # its address, without credentials
    store: str = ""  # the store's directory, if the trainer can access it
    places: Places | None = None  # locations of the batch's records in the store
    seed: int = 0  # the sampler's seed, the default for transforms
    # How often the epoch has already drawn each sample, as little-endian uint32. Empty if all are 0.
    repetitions: bytes = b""
    alone: bool = False  # whether no other rank or dataset of a mix contributes to this step

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.sample_ids) // ID_BYTES

    def label_array(self) -> Labels:
        """Return the labels as a read-only array of shape (samples, ...).

        Labels that contain lists of varying length are returned as ``RaggedLabels``.
        """
        return unpack_labels(self.labels, self.label_dtype, len(self))

    def padding_mask(self) -> NDArray[np.bool_]:
        """Return a boolean mask of shape (samples,) that is ``True`` for padding."""
        if not self.padding:
            return np.zeros(len(self), dtype=np.bool_)
        return np.frombuffer(self.padding, dtype=np.bool_)

    def name_of(self, offset: int) -> str:
        """Return a sample's key or, if it is unknown, the id and the command that prints the key."""
        if self.keys and (key := self.keys[offset]):
            return key
        hex_id = self.sample_ids[offset * ID_BYTES : (offset + 1) * ID_BYTES].hex()
        return f"sample {hex_id} (for its key, run superdl stats --batch {self.batch_id.hex()})"


@dataclass(frozen=True, slots=True)
class MixedRef:
    """One rank's batch from a mix of datasets."""

    # The index and batch of each dataset that has samples in it.
    parts: tuple[tuple[int, BatchRef], ...]

    @property
    def epoch(self) -> int:
        """The epoch of the mix."""
        return self.parts[0][1].epoch

    @property
    def position(self) -> int:
        """The batch's position in this rank's epoch, from 0."""
        return self.parts[0][1].position

    def __len__(self) -> int:
        """Return the number of samples."""
        return sum(len(ref) for _, ref in self.parts)

    def __lt__(self, other: object) -> bool:
        """Raise ``UsageError``. Only a ConcatDataset compares batches, mistaking them for sample indices."""
        raise UsageError(
            "a ConcatDataset reads single samples, but the sampler of a mix yields whole batches: pass the "
            "SuperMix itself to the DataLoader, or use SuperLoader"
        )


@dataclass(frozen=True, slots=True)
class DatasetBinding:
    """The properties of a dataset that are known once its source has been listed."""

    dataset_id: bytes
    fingerprint: bytes
    size: int
    classes: tuple[str, ...]  # empty if a key list contains labels as numbers
    label_dtype: str
    cache: str  # empty while no job is open
    store: str = ""  # empty unless this machine can access it


class Bindable(Protocol):
    """The interface that a sampler requires of a dataset."""

    # The address that samplers use by default.
    coordinator: str | None
    # Warnings already shown to the user.
    warned: set[str]

    @property
    def source(self) -> str:
        """The URL of the source."""

    @property
    def recipe(self) -> Recipe:
        """The recipe that is applied to every sample."""

    @property
    def key_list(self) -> str | None:
        """The URL of the key list, or ``None``."""

    @property
    def naming(self) -> Naming:
        """The scheme by which ids name samples."""

    @property
    def given_classes(self) -> tuple[str, ...]:
        """The class names, indexed by label. If empty, the listing determines them."""

    @property
    def reads_straight(self) -> bool:
        """Whether to read records directly from the store's packs if this machine can access them."""

    def bind(self, binding: DatasetBinding) -> None:
        """Set the properties that the coordinator reports. This may be called again with newer properties."""

    @property
    def bad_samples(self) -> tuple[Any, ...]:
        """The bad samples skipped so far."""

    def name_bad_samples(self) -> None:
        """Warn about bad samples that other processes have skipped since the last call."""

    def ping_cache(self, cache: str) -> None:
        """Check that the cache accepts the dataset's credentials. Raises :class:`CacheError` otherwise."""
