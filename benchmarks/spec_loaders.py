"""The loaders that a spec may name, as contenders: opened as for training, with their figures left out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.object_store import place_of
from superdl.experiments.data import Source
from superdl.experiments.loaders import LoaderRequest, open_loader
from superdl.experiments.spec_sections import LoaderSpec, RecipeSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from benchmarks.loading import Contender, Loading
    from superdl.experiments.loaders import Loader

__all__ = ["convert_for", "open_boto3", "opener"]


def opener(kind: str) -> Callable[[Loading], Contender]:
    """Opens the loader of that kind over the files; its conversion, if it needs one, is there."""

    def open_kind(loading: Loading) -> Contender:
        return _Contender(open_loader(kind, _request(kind, loading, loading.format_directory(kind))))

    return open_kind


def open_boto3(loading: Loading) -> Contender:
    """Pillow in a DataLoader, each image a GET of boto3."""
    os.environ["SUPER_S3_ENDPOINT_URL"] = loading.store  # this process has no other
    bucket, prefix = place_of(loading.directory)
    request = _request("torch", loading, Path(), Source(f"s3://{bucket}/{prefix}"))
    return _Contender(open_loader("torch", request))


def convert_for(kind: str) -> Callable[[Loading, Path], None]:
    """Writes the images into an empty directory, in the format of that kind."""

    def convert(loading: Loading, target: Path) -> None:
        open_loader(kind, _request(kind, loading, target)).close()

    return convert


def _request(kind: str, loading: Loading, converted: Path, source: Source | None = None) -> LoaderRequest:
    return LoaderRequest(
        source=source or Source(f"file://{loading.directory}"),
        recipe=RecipeSpec(resize=loading.resize, crop=loading.crop),
        loader=LoaderSpec(kind=kind, batch_size=loading.batch_size, num_workers=loading.num_workers),
        training=True,
        seed=loading.seed,
        pin_memory=loading.pin_memory,
        converted=converted,
    )


class _Contender:
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return ((images, labels) for images, labels, _ in self._loader)

    def produced(self) -> int:
        return 0  # functions are SUPER's alone

    def close(self) -> None:
        self._loader.close()
