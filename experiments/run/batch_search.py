"""Find the largest batch that fits into a GPU's memory: ``superdl run SPEC --find-batch-size``."""

from __future__ import annotations

import gc
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch

from superdl.experiments.console import Console, say
from superdl.experiments.run.training_run import begun, images_of, opened_loader
from superdl.experiments.training.steps import trial_step
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from superdl.experiments.spec import Spec


@dataclass(frozen=True, slots=True)
class BatchSizes:
    """The largest ``batch_size`` below ``limit_bytes``.

    ``tried`` maps each size to its peak, or to None if it did not fit.
    """

    batch_size: int
    device: str
    limit_bytes: int
    tried: dict[int, int | None]


def largest_batch(spec: Spec, *, console: Console | None = None) -> BatchSizes:
    """Find the largest batch, and print each size tried with its memory.

    Raises:
        ConfigError: there is no GPU, there are several ranks, or not even one image fits.
        SuperError: the data is not available.
    """
    print_line = partial(say, console or Console())
    with begun(spec) as (ranks, device, _):
        if device.type != "cuda" or ranks.several:
            # Ranks under DDP fit as much each; under FSDP more, since each has a part of the model.
            raise ConfigError(
                "--find-batch-size measures the memory of one GPU: run it on a machine that has one, without "
                "torchrun (each rank with such a GPU can take batches of the same size)"
            )
        data = images_of(spec, ranks, print_line)
        with closing(opened_loader(spec, data.train, ranks, print_line, training=True)) as loader:
            classes, at_most = len(loader.classes), loader.sample_count
        name, limit_bytes = torch.cuda.get_device_name(device), torch.cuda.mem_get_info(device)[0]
        print_line(
            f"finding the largest batch of {spec.model.name} with images of {spec.recipe.crop} pixels, {name}"
        )
        tried: dict[int, int | None] = {}

        def fits(size: int) -> bool:
            peak = tried[size] = _peak_bytes(spec, classes, device, size)
            memory = "out of memory" if peak is None else f"{peak / 2**30:.2f} GiB, fits"
            print_line(f"batch {size}: {memory}")
            return peak is not None

        best = largest_that_fits(fits, at_most)
    if not best:
        raise ConfigError(
            f"not even a batch of one image fits into {limit_bytes / 2**30:.2f} GiB on {name}; use a "
            "smaller model.name or recipe.crop, or a larger machine"
        )
    print_line(f"loader.batch_size={best} is the largest that fits")
    return BatchSizes(best, name, limit_bytes, tried)


def largest_that_fits(fits: Callable[[int], bool], at_most: int) -> int:
    """Return the largest size that fits, accurate to a sixteenth of it, or 0 if not even 1 fits."""
    best, too_many = 0, None
    # Double the size while it fits, then halve the gap to the smallest that does not.
    while too_many is None and best < at_most:
        size = min(max(2 * best, 1), at_most)
        if fits(size):
            best = size
        else:
            too_many = size
    while too_many is not None and too_many - best > max(best // 16, 1):
        middle = (best + too_many) // 2
        if fits(middle):
            best = middle
        else:
            too_many = middle
    return best


def _peak_bytes(spec: Spec, classes: int, device: torch.device, size: int) -> int | None:
    """Take two steps on synthetic images, and return their peak memory, or None if memory ran out."""
    gc.collect()  # model, optimiser and schedule of an earlier size refer to one another
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    shape = (max(size, 2), 3, spec.recipe.crop, spec.recipe.crop)  # batch norm needs two images
    try:
        step = trial_step(spec, classes, device)
        # The first step creates the optimiser's state: the second has the peak.
        for _ in range(2):
            images = torch.randint(0, 256, shape, dtype=torch.uint8, device=device)
            labels = torch.randint(0, classes, shape[:1], device=device)
            step(images.contiguous(memory_format=torch.channels_last), labels)
    except torch.OutOfMemoryError:
        return None
    return torch.cuda.max_memory_reserved(device)
