"""The loaders that a spec can select. All share an interface and read the same files with the same seed."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from superdl.experiments.loaders.decoding import DecodingLoader, open_torch
from superdl.experiments.loaders.samples import Batch, BatchMetrics, LoaderRequest
from superdl.experiments.loaders.super_loader import SuperReader, open_super, open_super_threads
from superdl.experiments.loaders.tar_loader import open_webdataset
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["LOADERS", "Batch", "BatchMetrics", "Loader", "LoaderRequest", "open_loader"]

# One opened split. Each iteration is one epoch.
Loader: TypeAlias = DecodingLoader | SuperReader

# A new loader needs a row here and an open function in a module of this package.
LOADERS: Mapping[str, Callable[[LoaderRequest], Loader]] = {
    "super": open_super,
    "super-threads": open_super_threads,
    "torch": open_torch,
    "webdataset": open_webdataset,
}


def open_loader(request: LoaderRequest) -> Loader:
    """Open one split with the requested loader. ``torch`` also reads validation images for ``webdataset``.

    Raises:
        ConfigError: the loader does not support this source or multiple ranks.
        SourceError: the source cannot be listed or read.
    """
    kind = request.loader.kind
    if kind == "webdataset" and request.replicas > 1:
        raise ConfigError("loader.kind webdataset supports only one rank. Use super, super-threads or torch.")
    if kind == "webdataset" and not request.training:
        kind = "torch"
    return LOADERS[kind](request)
