"""What training asks of a loader: batches with their figures, the classes, and the job's counters.

How batches come to be is left to the modules beside this one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from superdl.experiments.records import CountedLoader

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from superdl.experiments.data import Source
    from superdl.experiments.spec import LoaderSpec, RecipeSpec

__all__ = ["Batch", "BatchFigures", "Loader", "LoaderFactory", "LoaderRequest"]


class BatchFigures(Protocol):
    """What is known of one batch; `super_dataset.BatchInfo` has it. Seconds are float."""

    @property
    def batch_id(self) -> bytes:
        """Which samples it holds, in which order."""

    @property
    def read_s(self) -> float:
        """Seconds that a worker spent reading the cache."""

    @property
    def fetch_s(self) -> float:
        """Seconds that fetching its samples from the source once took, summed."""

    @property
    def decode_s(self) -> float:
        """Seconds that decoding its samples once took, summed."""

    @property
    def hits(self) -> int:
        """Samples that the first look into the cache found."""

    @property
    def misses(self) -> int:
        """Samples that it did not find."""

    @property
    def size_bytes(self) -> int:
        """Bytes of its images."""

    @property
    def padding(self) -> NDArray[np.bool_] | None:
        """Which samples are there only to make ranks equally long; None: none of them."""


Batch = tuple[Tensor, Tensor, BatchFigures]
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


def _no_one(_: str) -> None:
    pass


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
    tell: Callable[[str], None] = _no_one

    def worker_options(self) -> dict[str, Any]:
        """The options of a DataLoader that the spec decides; they are settings of the report, too."""
        return {
            "num_workers": self.loader.num_workers,
            "persistent_workers": self.loader.num_workers > 0,
            "pin_memory": self.pin_memory,
        }


LoaderFactory = Callable[[LoaderRequest], Loader]
