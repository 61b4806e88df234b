"""MosaicML Streaming: MDS shards of decoded pixels, read from local disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader

from benchmarks.loading import Contender, Loading, Opened
from benchmarks.plain_loaders import Pairs
from superdl.experiments.torchvision_operators import declare_operators

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

__all__ = ["FORMAT", "open_raw", "write_raw"]

FORMAT = "mds-raw"


def write_raw(loading: Loading, target: Path) -> None:
    """Write decoded pixels of one shape."""
    declare_operators()
    from streaming import MDSWriter

    columns = {"image": f"ndarray:uint8:{loading.crop},{loading.crop},3", "label": "int"}
    pairs = Pairs(loading)
    with MDSWriter(out=str(target), columns=columns) as out:
        for index in range(len(pairs)):
            pixels, label = pairs[index]
            out.write({"image": pixels, "label": label})


def open_raw(loading: Loading) -> Contender:
    """Take the pixels, collated by torch's own collate."""
    declare_operators()
    from streaming import StreamingDataset

    dataset = StreamingDataset(
        local=str(loading.format_directory(FORMAT)),
        batch_size=loading.batch_size,
        shuffle=True,
        shuffle_seed=loading.seed,
    )
    batches: DataLoader[Any] = DataLoader(
        dataset,
        batch_size=loading.batch_size,
        num_workers=loading.num_workers,
        persistent_workers=loading.num_workers > 0,
    )
    return Opened(batches, pair=_pair)


def _pair(batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    return batch["image"].permute(0, 3, 1, 2), batch["label"].to(torch.int64)
