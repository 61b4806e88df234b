"""FFCV: one file of decoded pixels, mapped into memory, gathered by compiled threads of the main process.

Optional: the package comes as source, and its library and bindings are built with a C++ compiler against
OpenCV and TurboJPEG. On Debian, as root: ``apt-get install g++ pkg-config libopencv-dev libturbojpeg0-dev``;
then ``.venv-bench/bin/pip install --no-deps ffcv fastargs terminaltables`` and
``.venv-bench/bin/pip install numba opencv-python-headless pandas``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from benchmarks.loading import Contender, Loading, Opened
from benchmarks.plain_loaders import Pairs

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

__all__ = ["FORMAT", "open_raw", "write_raw"]

FORMAT = "ffcv-raw"
_FILE = "images.beton"


def write_raw(loading: Loading, target: Path) -> None:
    """Write decoded pixels."""
    from ffcv.fields import IntField, RGBImageField
    from ffcv.writer import DatasetWriter

    fields = {"image": RGBImageField(write_mode="raw"), "label": IntField()}
    writer = DatasetWriter(str(target / _FILE), fields, num_workers=1)
    writer.from_indexed_dataset(Pairs(loading))


def open_raw(loading: Loading) -> Contender:
    """Gather in random order by one thread, as many as SUPER's main process would use to receive."""
    from ffcv.fields.decoders import IntDecoder, SimpleRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import Squeeze, ToTensor, ToTorchImage

    return Opened(
        Loader(
            str(loading.format_directory(FORMAT) / _FILE),
            batch_size=loading.batch_size,
            num_workers=1,
            order=OrderOption.RANDOM,
            os_cache=True,
            seed=loading.seed,
            drop_last=False,
            pipelines={
                "image": [SimpleRGBImageDecoder(), ToTensor(), ToTorchImage(convert_back_int16=False)],
                "label": [IntDecoder(), ToTensor(), Squeeze()],
            },
        ),
        pair=_pair,
    )


def _pair(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    images, labels = batch
    return images, labels.to(torch.int64).reshape(-1)
