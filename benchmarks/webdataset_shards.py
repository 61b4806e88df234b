"""WebDataset: tar shards that hold the JPEGs unchanged, read in order and shuffled in a buffer."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch

from benchmarks.loading import Contender, Loading, Opened
from benchmarks.plain_loaders import collate
from experiments.loaders.torch_loader import recipe_pixels

__all__ = ["FORMAT", "open_loader", "write"]

FORMAT = "webdataset"
_SHARDS = 8  # workers share them out
_SHUFFLE_BUFFER = 1000  # samples, as in the package's examples


def write(loading: Loading, target: Path) -> None:
    """Write the files into shards, in shuffled order, as the package's documentation advises."""
    import webdataset

    root = Path(loading.directory)
    files = sorted(root.glob("*/*.jpg"))
    labels = {name: label for label, name in enumerate(sorted({file.parent.name for file in files}))}
    order = torch.randperm(len(files), generator=torch.Generator().manual_seed(loading.seed)).tolist()
    for shard in range(_SHARDS):
        with webdataset.TarWriter(str(target / f"shard-{shard:03d}.tar")) as sink:
            for index in order[shard::_SHARDS]:
                file = files[index]
                sample = {"__key__": f"{file.parent.name}-{file.stem}", "jpg": file.read_bytes()}
                sink.write({**sample, "cls": labels[file.parent.name]})


def open_loader(loading: Loading) -> Contender:
    """Shards and samples shuffled, decoded and batched in the workers."""
    import webdataset

    shards = sorted(str(path) for path in loading.format_directory(FORMAT).glob("*.tar"))
    transform = partial(recipe_pixels, resize=loading.resize, crop=loading.crop)
    dataset = (
        webdataset.WebDataset(shards, shardshuffle=len(shards), seed=loading.seed, empty_check=False)
        .shuffle(_SHUFFLE_BUFFER)
        .decode("pil")
        .to_tuple("jpg", "cls")
        .map_tuple(transform, int)
        .batched(loading.batch_size, collation_fn=collate)
    )
    return Opened(
        webdataset.WebLoader(
            dataset,
            batch_size=None,
            num_workers=loading.num_workers,
            persistent_workers=loading.num_workers > 0,
        )
    )
