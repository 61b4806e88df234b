"""What a torch user writes without another package: Pillow in a DataLoader, over files or over S3."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from benchmarks.loading import Contender, Loading, Opened
from benchmarks.object_store import place_of
from experiments.loaders.torch_loader import FolderImages, decode_image

if TYPE_CHECKING:
    import numpy.typing as npt
    from torch import Tensor

__all__ = ["Pairs", "collate", "data_loader", "open_boto3", "open_pillow"]

_Pair = tuple["npt.NDArray[np.uint8]", int]


def open_pillow(loading: Loading) -> Contender:
    """Pillow in a DataLoader, over the files themselves."""
    return Opened(data_loader(Pairs(loading), loading))


def open_boto3(loading: Loading) -> Contender:
    """Pillow in a DataLoader, each image a GET of boto3."""
    return Opened(data_loader(_Objects(loading), loading))


def data_loader(dataset: Dataset[_Pair], loading: Loading) -> DataLoader[Any]:
    """The DataLoader over a map-style dataset, as each of its users writes it."""
    return DataLoader(
        dataset,
        batch_size=loading.batch_size,
        shuffle=True,
        generator=torch.Generator().manual_seed(loading.seed),
        num_workers=loading.num_workers,
        persistent_workers=loading.num_workers > 0,
        pin_memory=loading.pin_memory,
        collate_fn=collate,
    )


class Pairs(Dataset[_Pair]):
    """Pixels and label of each file; the figures that `FolderImages` gives beside them are left out."""

    def __init__(self, loading: Loading) -> None:
        self._images = FolderImages(Path(loading.directory), resize=loading.resize, crop=loading.crop)

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> _Pair:
        item = self._images[index]
        return item.pixels, item.label


class _Objects(Dataset[_Pair]):
    """The same images as objects of a bucket; each process has a client of its own."""

    def __init__(self, loading: Loading) -> None:
        self._loading = loading
        self._bucket, self._prefix = place_of(loading.directory)
        self._client: Any = None
        pages = self._make_client().get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=self._prefix
        )  # fmt: skip
        self._keys = sorted(entry["Key"] for page in pages for entry in page.get("Contents", ()))
        classes = sorted({_class_of(key) for key in self._keys})
        self._labels = {name: label for label, name in enumerate(classes)}

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, index: int) -> _Pair:
        if self._client is None:
            self._client = self._make_client()
        key = self._keys[index]
        content = self._client.get_object(Bucket=self._bucket, Key=key)["Body"].read()
        pixels = decode_image(content, resize=self._loading.resize, crop=self._loading.crop)
        return pixels, self._labels[_class_of(key)]

    def _make_client(self) -> Any:
        import boto3  # the other loaders' processes need it not
        from botocore.config import Config

        # The server's answers carry no checksums.
        config = Config(response_checksum_validation="when_required")
        return boto3.session.Session().client("s3", endpoint_url=self._loading.store, config=config)


def _class_of(key: str) -> str:
    return key.split("/")[-2]


def collate(pairs: list[_Pair]) -> tuple[Tensor, Tensor]:
    """Stack with one copy: in a worker into shared memory, as torch's own collate does; never transposed."""
    first = pairs[0][0]
    shape = (len(pairs), *first.shape)
    if get_worker_info() is None:
        images = torch.empty(shape, dtype=torch.uint8)
    else:
        images = shared_bytes(len(pairs) * first.nbytes).view(shape)
    np.stack([pixels for pixels, _ in pairs], out=images.numpy())
    return images.permute(0, 3, 1, 2), torch.tensor([label for _, label in pairs], dtype=torch.int64)


def shared_bytes(size: int) -> Tensor:
    """Fresh shared memory, as a tensor of bytes."""
    new_shared: Any = torch.UntypedStorage._new_shared  # noqa: SLF001  # what torch's own collate calls
    storage: torch.UntypedStorage = new_shared(size)
    return torch.empty(0, dtype=torch.uint8).set_(storage, 0, (size,), (1,))
