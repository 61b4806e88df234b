"""The arguments of a loader, and the batches with their figures that it gives."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

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
