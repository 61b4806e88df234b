"""LitData: chunks of decoded pixels, read from local disk."""

from __future__ import annotations

import os
import tempfile
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.loading import Contender, Loading, Opened
from benchmarks.plain_loaders import Pairs
from superdl.experiments.torchvision_operators import declare_operators

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

__all__ = ["FORMAT", "open_raw", "write_raw"]

FORMAT = "litdata-raw"


def write_raw(loading: Loading, target: Path) -> None:
    """Write decoded pixels through the package's ``optimize``."""
    declare_operators()
    from litdata import optimize

    pairs = Pairs(loading)
    with tempfile.TemporaryDirectory(prefix="superdl-litdata-") as scratch:
        # Where it works; else it leaves folders of common names in the system's temporary directory.
        os.environ["DATA_OPTIMIZER_CACHE_FOLDER"] = scratch
        os.environ["DATA_OPTIMIZER_DATA_CACHE_FOLDER"] = scratch
        optimize(
            fn=partial(_item, pairs),
            inputs=list(range(len(pairs))),
            output_dir=str(target),
            chunk_bytes="64MB",
            num_workers=1,
            verbose=False,
        )


def open_raw(loading: Loading) -> Contender:
    """Take the pixels, one by one: decoding chunks in batches costs more where there is nothing to decode."""
    declare_operators()
    from litdata import StreamingDataLoader, StreamingDataset

    dataset = StreamingDataset(
        str(loading.format_directory(FORMAT)),
        shuffle=True,
        seed=loading.seed,
        batch_decode=False,
    )
    batches = StreamingDataLoader(
        dataset,
        batch_size=loading.batch_size,
        num_workers=loading.num_workers,
        persistent_workers=loading.num_workers > 0,
    )
    return Opened(batches, pair=_pair)


def _item(pairs: Pairs, index: int) -> dict[str, Any]:
    pixels, label = pairs[index]
    return {"image": pixels.copy(), "label": label}


def _pair(batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    return batch["image"].permute(0, 3, 1, 2), batch["label"].to(torch.int64)
