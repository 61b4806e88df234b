"""What training asks of a loader: batches with their figures, the classes, and the job's counters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from superdl.experiments.records import CountedLoader

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from superdl.experiments.data import Source
    from superdl.experiments.spec import LoaderSpec, RecipeSpec
    from superdl.super_dataset import BatchInfo

__all__ = ["Batch", "BatchFigures", "Loader", "LoaderFactory", "LoaderRequest", "WorkerFigures"]


@dataclass(frozen=True, slots=True)
class WorkerFigures:
    """What a worker measured while it made one batch; there is no cache to read, hit or miss.

    ``batch_id`` tells which samples it holds, in which order. Seconds are sums over them. ``padding`` marks
    samples that are there only to make ranks equally long; None: none of them.
    """

    batch_id: bytes
    fetch_s: float
    decode_s: float
    size_bytes: int
    read_s: float = 0.0
    hits: int = 0
    misses: int = 0
    padding: NDArray[np.bool_] | None = None


BatchFigures: TypeAlias = "BatchInfo | WorkerFigures"
"""What is known of one batch."""

Batch: TypeAlias = "tuple[Tensor, Tensor, BatchFigures]"
"""uint8 images [N, 3, H, W] in channels_last layout, int64 labels [N], and the figures."""


class Loader(CountedLoader, Protocol):
    """One opened split. Each iteration is one epoch."""

    @property
    def classes(self) -> Sequence[str]:
        """The names of the classes; a label is an index into them."""

    @property
    def sample_count(self) -> int:
        """How many samples the split has."""

    @property
    def settings(self) -> Mapping[str, object]:
        """What it was opened with, by the names of its own documentation, for the report."""

    @property
    def fingerprint(self) -> str:
        """Of the listing: keys, versions (of files, sizes and times), labels and classes."""

    @property
    def resumes_within_epochs(self) -> bool:
        """Whether it can go on in the middle of an epoch with just the samples that are left of it."""

    def __len__(self) -> int:
        """How many batches an epoch has."""

    def set_epoch(self, epoch: int) -> None:
        """Make ``epoch`` the one that the next iteration begins; a place in it that was just loaded stays."""

    def state_dict(self, batches: int) -> dict[str, Any]:
        """The place after so many batches of the latest iteration, as plain values."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration begin at a place that any rank's loader told.

        Raises:
            ConfigError: it is a place in other batches than this loader's.

        """

    def __iter__(self) -> Iterator[Batch]:
        """Begin the next epoch."""

    def close(self) -> None:
        """End the workers and the job; the loader is of no use after it."""


@dataclass(frozen=True, slots=True)
class LoaderRequest:
    """All that a loader is opened with; ``training`` means shuffled by ``seed``, else in key order.

    Of each epoch the loader gives the part of ``rank``, one of ``replicas``; the batch size is a rank's.
    ``converted`` is where a loader with a format of its own keeps the images in it, and ``tell`` gets a line
    for people when it writes them.
    """

    source: Source
    recipe: RecipeSpec
    loader: LoaderSpec
    training: bool
    seed: int
    pin_memory: bool
    rank: int = 0
    replicas: int = 1
    converted: Path = Path("data/converted")
    tell: Callable[[str], object] = lambda _: None

    def worker_options(self) -> dict[str, Any]:
        """The options of a DataLoader that the spec decides; they are settings of the report, too."""
        return {
            "num_workers": self.loader.num_workers,
            "persistent_workers": self.loader.num_workers > 0,
            "pin_memory": self.pin_memory,
        }


LoaderFactory = Callable[[LoaderRequest], Loader]
