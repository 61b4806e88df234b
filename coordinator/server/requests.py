"""Makes prefetch requests: samples of a dataset as a function is told of them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from superdl.super_wire.request import PrefetchRequest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from superdl.coordinator.server.datasets import Dataset

__all__ = ["request_for"]

_HEX_DIGITS = 32


def request_for(
    dataset: Dataset,
    indices: NDArray[np.int64],
    *,
    epoch: int,
    request_id: str,
    cache: str,
    expires_in_s: float,
) -> PrefetchRequest:
    """A request for samples of a dataset, by their places in its catalog."""
    catalog, ids = dataset.catalog, dataset.ids(indices, epoch).hex()
    return PrefetchRequest(
        request_id=request_id,
        bucket=catalog.bucket,
        recipe=dataset.recipe.json,
        epoch=epoch,
        cache=cache,
        expires_at=time.time() + expires_in_s,
        keys=tuple(map(bytes.decode, catalog.keys.take(indices))),
        versions=tuple(map(bytes.decode, catalog.versions.take(indices))),
        ids=tuple(ids[at : at + _HEX_DIGITS] for at in range(0, len(ids), _HEX_DIGITS)),
    )
