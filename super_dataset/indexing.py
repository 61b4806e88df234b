"""``dataset[i]``: resolving an index, planning its sample, refusing other indices."""

from __future__ import annotations

import operator
import os
import sys
from typing import TYPE_CHECKING, Any

from superdl.super_wire.batch_ref import BatchRef
from superdl.super_wire.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sized

    from superdl.sampler import SuperSampler
    from superdl.super_wire.batch_ref import Bindable

_FETCH, _WRAPPERS = "torch.utils.data._utils.fetch", ("torch.utils.data.dataset", "superdl.super_dataset")
_THREE_LINES = """\
    dataset = SuperDataset(source, recipe)
    sampler = SuperSampler(dataset, batch_size=256, shuffle=True)
    loader = DataLoader(dataset, sampler=sampler, batch_size=None)"""


def place_of(index: Any, dataset: Sized) -> int:
    """Return the place in ``dataset.samples`` for an index, which may be negative.

    ``IndexError`` if it is out of range; ``UsageError`` if it is no index, or a DataLoader asks.
    """
    if isinstance(index, slice):
        raise UsageError(
            "a SuperDataset has no slices: dataset[i] is one sample; torch.utils.data.Subset(dataset, "
            f"range({index.start or 0}, {'len(dataset)' if index.stop is None else index.stop})) is a part, "
            "of which SuperLoader(part, batch_size=...) reads batches"
        )
    try:
        place = operator.index(index)
    except TypeError:
        place = None
    if place is None or isinstance(index, bool) or _a_loader_asks():
        raise UsageError(how_to_use(index))
    size = len(dataset)
    if not -size <= place < size:
        raise IndexError(f"there is no sample {place}: the dataset has {size}")
    return place % size


def sampler_of_one(dataset: Bindable, place: int) -> SuperSampler:
    """Return a sampler of the one sample at ``place``, as in the first epoch of seed 0."""
    from superdl.sampler import SuperSampler

    return SuperSampler(
        dataset,
        batch_size=1,
        shuffle=False,
        indices=[place],
        rank=0,
        num_replicas=1,
        # A job of its own, whose name no other process takes.
        job=f"sample-{os.urandom(8).hex()}",
    )


def how_to_use(index: object) -> str:
    """Explain why ``dataset[index]`` was refused, and show the intended use."""
    if isinstance(index, list | tuple) and index and all(isinstance(item, BatchRef) for item in index):
        return (
            "SuperDataset was given a list of BatchRefs: each is a whole batch already, so the DataLoader is "
            f"not to make batches of them. Pass batch_size=None (and no batch_sampler):\n{_THREE_LINES}"
        )
    return (
        f"a DataLoader indexes a SuperDataset by the BatchRefs that a SuperSampler yields, not by "
        f"{type(index).__name__} ({str(index)[:40]}): it reads whole batches. The intended way:\n"
        f"{_THREE_LINES}\n"
        "If it was done so, a framework has put a sampler of its own in the place of the SuperSampler: "
        "Accelerate's prepare() is not to be given the loader, and Lightning's Trainer no overfit_batches "
        "(docs/frameworks.md). Outside of a DataLoader dataset[i] is one sample"
    )


def _a_loader_asks() -> bool:
    # A DataLoader with another sampler indexes single samples, perhaps through a Subset.
    # It would mistake each sample for a batch.
    frame = sys._getframe(1)  # noqa: SLF001 # nothing else tells
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith(_WRAPPERS):
        frame = frame.f_back
    return frame.f_globals.get("__name__") == _FETCH
