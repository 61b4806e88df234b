"""The sentences by which a reader explains itself: which batch, what is missing, why, and what to do."""

from __future__ import annotations

from types import FunctionType
from typing import TYPE_CHECKING

from torch.nn import Sequential

from superdl.super_wire.batch_ref import BatchRef

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["batch_name", "how_to_use", "listed", "per_sample", "timeout_message"]

_NAMED_AT_MOST = 3

_FOR_ONE_IMAGE = ("torchvision.transforms", "timm.data")
_V2 = "torchvision.transforms.v2"

_THREE_LINES = """\
    dataset = SuperDataset(source, recipe)
    sampler = SuperSampler(dataset, batch_size=256)
    loader = DataLoader(dataset, sampler=sampler, batch_size=None)"""


def batch_name(ref: BatchRef) -> str:
    """How a message names a batch."""
    place = f"position {ref.position} of epoch {ref.epoch}, rank {ref.rank}, job {ref.job}"
    return f"batch {ref.batch_id.hex()} ({place})"


def listed(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    more = len(names) - _NAMED_AT_MOST
    return ", ".join(names[:_NAMED_AT_MOST]) + (f" and {more} more" if more > 0 else "")


def timeout_message(
    ref: BatchRef,
    missing: Sequence[int],
    *,
    attempts: int,
    waited_s: float,
    trouble: str,
    corrupt: Sequence[str],
    out_of_memory: bool,
) -> str:
    """Why a batch did not come in time.

    ``trouble`` is what the cache, if it did not answer well, said last; ``corrupt`` what was wrong with
    records that it does hold; ``out_of_memory`` whether it refused the reader's report for want of memory.
    """
    text = (
        f"{batch_name(ref)}: {len(missing)} of {len(ref)} samples are still missing after "
        f"{attempts} attempts in {waited_s:.1f} s: {listed([ref.name_of(offset) for offset in missing])}. "
    )
    if trouble:
        return f"{text}The last attempt failed: {trouble}. Is the cache at {ref.cache} running and reachable?"
    if corrupt:
        return (
            f"{text}The cache at {ref.cache} holds corrupt records: {listed(corrupt)}. Do trainer and "
            "functions have one version of SUPER, and does nobody else write to this cache?"
        )
    if out_of_memory:
        return (
            f"{text}The cache at {ref.cache} is out of memory: it refuses to write (OOM). Raise its "
            "maxmemory, or empty it of what others have put there; superdl stats says how much is for records"
        )
    return (
        f"{text}The cache at {ref.cache} answers but does not hold them. Is the coordinator running? Are "
        "its functions slower than the trainer (superdl stats), or is the cache too small for the batches "
        "in flight? A longer read_timeout waits longer"
    )


def how_to_use(index: object) -> str:
    """Why ``dataset[index]`` was refused, and the intended way."""
    if isinstance(index, list | tuple) and index and all(isinstance(item, BatchRef) for item in index):
        return (
            "SuperDataset was given a list of BatchRefs: each is a whole batch already, so the DataLoader is "
            f"not to make batches of them. Pass batch_size=None (and no batch_sampler):\n{_THREE_LINES}"
        )
    return (
        f"SuperDataset is indexed by the BatchRefs that a SuperSampler yields, not by {type(index).__name__} "
        f"({str(index)[:40]}): it reads whole batches. The intended way:\n{_THREE_LINES}\n"
        "If it was done so, a framework has put a sampler of its own in the place of the SuperSampler: "
        "Accelerate's prepare() is not to be given the loader, and Lightning's Trainer no overfit_batches "
        "(docs/frameworks.md)"
    )


def per_sample(transform: object) -> str:
    """Why a ``transform`` is not for batches, and the way to do it; empty where nothing speaks against it.

    torchvision and timm make theirs for one image: v1's fail on a batch, v2's draw once for all of it. What
    of v2 draws nothing is right on a batch too. Neither package is imported.
    """
    name = _made_for_one_image(transform)
    if not name:
        return ""
    return (
        f"transform is called as transform(images, labels, info) on a whole batch, and {name} is made for "
        "one image: on a batch it fails, or draws once for all samples. What draws nothing goes into the "
        "recipe, Recipe.image(resize=256, crop=224); random crops, flips and colours are "
        "transform=Augment(224) (docs/augmentation.md). Or give a function that applies it to each sample:\n"
        "    def transform(images, labels, info):\n"
        "        return torch.stack([pipeline(image) for image in images]), labels"
    )


def _made_for_one_image(part: object) -> str:
    """The name of the first part that is, or empty."""
    kinds = type(part).__mro__
    base = next(
        (kind for kind in kinds if kind.__name__ == "Transform" and kind.__module__.startswith(_V2)), None
    )
    if isinstance(part, Sequential):
        inner = list(part)
    elif base is not None and type(part).__name__ == "Compose":
        inner = list(getattr(part, "transforms", ()))
    elif base is not None:
        how = ("forward", "make_params", "_get_params")  # what of v2 draws has one of its own
        draws = any(getattr(type(part), name, None) is not getattr(base, name, None) for name in how)
        return type(part).__name__ if draws else ""
    else:
        homes = [part.__module__] if isinstance(part, FunctionType) else [kind.__module__ for kind in kinds]
        foreign = any(home.startswith(_FOR_ONE_IMAGE) for home in homes)
        return getattr(part, "__name__", type(part).__name__) if foreign else ""
    return next(filter(None, map(_made_for_one_image, inner)), "")
