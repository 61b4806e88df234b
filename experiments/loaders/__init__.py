"""The loaders that a spec may select, behind one interface, with the same files and seed."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from superdl.experiments.loaders.decoding import DecodingLoader, open_torch
from superdl.experiments.loaders.samples import Batch, BatchFigures, LoaderRequest
from superdl.experiments.loaders.shard_loaders import open_litdata, open_mds, open_webdataset
from superdl.experiments.loaders.super_loader import SuperReader, open_super, open_super_threads
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["LOADERS", "Batch", "BatchFigures", "Loader", "LoaderRequest", "open_loader"]

# One opened split. Each iteration is one epoch.
Loader: TypeAlias = DecodingLoader | SuperReader

# A new loader needs a row here and an open function in a module of this package.
LOADERS: Mapping[str, Callable[[LoaderRequest], Loader]] = {
    "super": open_super,
    "super-threads": open_super_threads,
    "torch": open_torch,
    "webdataset": open_webdataset,
    "mds": open_mds,
    "litdata": open_litdata,
}
_OF_SHARDS = ("webdataset", "mds", "litdata")


def open_loader(request: LoaderRequest) -> Loader:
    """Open one split with the requested loader. Loaders of shards leave validation images to ``torch``.

    Raises:
        ConfigError: the loader does not support this source, or several ranks.
        SourceError: the source cannot be listed or read.
    """
    kind = request.loader.kind
    if request.replicas > 1 and kind in _OF_SHARDS:
        raise ConfigError(f"loader.kind {kind} supports only one rank; use super, super-threads or torch")
    if not request.training and kind in _OF_SHARDS:
        kind = "torch"
    return LOADERS[kind](request)
