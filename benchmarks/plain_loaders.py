"""Images as pairs of pixels and label: what conversions to raw pixels write, and a batch of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.utils.data import Dataset

from superdl.experiments.data import Source
from superdl.experiments.loaders.decoding import stack
from superdl.experiments.loaders.pixels import decode_image
from superdl.experiments.loaders.samples import list_samples

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from torch import Tensor

    from benchmarks.loading import Loading

__all__ = ["Pairs", "collate"]

_Pair = tuple["npt.NDArray[np.uint8]", int]


class Pairs(Dataset[_Pair]):
    """Pixels and label of each file, in key order."""

    def __init__(self, loading: Loading) -> None:
        self._samples = list_samples(Source(f"file://{loading.directory}"), "torch")
        self._resize = loading.resize
        self._crop = loading.crop

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> _Pair:
        if index >= len(self):
            raise IndexError(index)
        content = self._samples.read(index)
        return decode_image(content, resize=self._resize, crop=self._crop), self._samples.labels[index]


def collate(pairs: list[_Pair]) -> tuple[Tensor, Tensor]:
    """Stack with one copy, into shared memory in a worker."""
    return stack([pixels for pixels, _ in pairs], [label for _, label in pairs])
