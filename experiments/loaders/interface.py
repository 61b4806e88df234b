"""The interface of a loader: batches with figures, classes, the job's counters."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from superdl.experiments.records import CountedLoader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from superdl.experiments.data import Source
    from superdl.experiments.spec import LoaderSpec, RecipeSpec
    from superdl.super_dataset import BatchInfo


@dataclass(frozen=True, slots=True)
class WorkerFigures:
    """A worker's measurements while it made a batch without a cache."""

    batch_id: bytes  # identifies the samples and their order
    # Seconds are sums over the samples.
    fetch_s: float
    decode_s: float
    size_bytes: int
    read_s: float = 0.0
    hits: int = 0
    misses: int = 0
    # Marks samples that only make ranks equally long; None: there are none.
    padding: NDArray[np.bool_] | None = None


BatchFigures: TypeAlias = "BatchInfo | WorkerFigures"

# uint8 images [N, 3, H, W] in channels_last layout, int64 labels [N], and the figures.
Batch: TypeAlias = "tuple[Tensor, Tensor, BatchFigures]"


class Loader(CountedLoader, Protocol):
    """One opened split. Each iteration is one epoch."""

    @property
    def classes(self) -> Sequence[str]:
        """The names of the classes; a label is an index into them."""

    @property
    def sample_count(self) -> int:
        """The number of samples in the split."""

    @property
    def settings(self) -> Mapping[str, object]:
        """Settings named as in the loader's documentation, for the report."""

    @property
    def fingerprint(self) -> str:
        """The fingerprint of keys, versions (of files, sizes and times), labels and classes."""

    @property
    def resumes_within_epochs(self) -> bool:
        """True if it can resume within an epoch with exactly the remaining samples."""

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""

    def set_epoch(self, epoch: int) -> None:
        """Set the next iteration's epoch, and keep a position in it that was just loaded."""

    def state_dict(self, batches: int) -> dict[str, Any]:
        """Return the place after ``batches`` of the latest iteration, as plain values."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Start the next iteration at a place from any rank's loader.

        Raises:
            ConfigError: the place belongs to other batches than this loader's.
        """

    def __iter__(self) -> Iterator[Batch]:
        """Begin the next epoch."""

    def close(self) -> None:
        """Stop the workers and the job; the loader cannot be used afterwards."""


@dataclass(frozen=True, slots=True)
class LoaderRequest:
    """The arguments of a loader, which gives the part of ``rank`` in each epoch."""

    source: Source
    recipe: RecipeSpec
    loader: LoaderSpec
    training: bool  # shuffled by the seed, else in key order
    seed: int
    pin_memory: bool
    # One of replicas. The batch size is per rank.
    rank: int = 0
    replicas: int = 1
    converted: Path = Path("data/converted")  # images of loaders with their own format
    # Receives a line for people when those are written.
    print_line: Callable[[str], object] = lambda _: None

    def worker_options(self) -> dict[str, Any]:
        """Return a DataLoader's options, which are also settings in the report."""
        return {
            "num_workers": self.loader.num_workers,
            "persistent_workers": self.loader.num_workers > 0,
            "pin_memory": self.pin_memory,
        }
