"""MosaicML Streaming: MDS shards of the JPEGs unchanged, or of decoded pixels, read from local disk."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image
from torch.utils.data import DataLoader

from benchmarks.loading import Contender, Loading, Opened
from benchmarks.plain_loaders import Pairs, collate
from experiments.loaders.pixels import recipe_pixels
from experiments.torchvision_operators import declare_operators

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["JPEG_FORMAT", "RAW_FORMAT", "open_jpeg", "open_raw", "write_jpeg", "write_raw"]

JPEG_FORMAT = "mds-jpeg"
RAW_FORMAT = "mds-raw"


def write_jpeg(loading: Loading, target: Path) -> None:
    """Write the files as they are: the package keeps the bytes of an image that it finds to be a JPEG
    file.
    """
    declare_operators()
    from streaming import MDSWriter

    with MDSWriter(out=str(target), columns={"image": "jpeg", "label": "int"}) as out:
        for label, folder in enumerate(sorted(Path(loading.directory).iterdir())):
            for file in sorted(folder.glob("*.jpg")):
                with Image.open(file) as image:
                    out.write({"image": image, "label": label})


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


def open_jpeg(loading: Loading) -> Contender:
    """Decode in the workers."""
    return Opened(_data_loader(JPEG_FORMAT, loading, collate_fn=_Decode(loading)))


def open_raw(loading: Loading) -> Contender:
    """Take the pixels, collated by torch's own collate."""
    return Opened(_data_loader(RAW_FORMAT, loading), pair=_pair)


def _data_loader(name: str, loading: Loading, **more: Any) -> DataLoader[Any]:
    declare_operators()
    from streaming import StreamingDataset

    dataset = StreamingDataset(
        local=str(loading.format_directory(name)),
        batch_size=loading.batch_size,
        shuffle=True,
        shuffle_seed=loading.seed,
    )
    return DataLoader(
        dataset,
        batch_size=loading.batch_size,
        num_workers=loading.num_workers,
        persistent_workers=loading.num_workers > 0,
        **more,
    )


class _Decode:
    """A collate function that decodes: what a user's own dataset class would do for each item."""

    def __init__(self, loading: Loading) -> None:
        self._resize = loading.resize
        self._crop = loading.crop

    def __call__(self, items: list[dict[str, Any]]) -> tuple[Tensor, Tensor]:
        return collate(
            [
                (recipe_pixels(item["image"], resize=self._resize, crop=self._crop), item["label"])
                for item in items
            ]
        )


def _pair(batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    return batch["image"].permute(0, 3, 1, 2), batch["label"].to(torch.int64)
