"""``superdl run SPEC --find-batch-size``: the largest batch that a rank of this spec can train with here.

Each rank searches; the least of them is the answer.
"""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.console import Console

from superdl.experiments.run.listeners import say
from superdl.experiments.run.opening import images_of, opened_loader, shipped_steps_allowed
from superdl.experiments.training.batch_size import (
    BatchSizes,
    CpuProbe,
    CudaProbe,
    StepShape,
    find_batch_size,
)
from superdl.experiments.training.device import pick_device, seed_everything
from superdl.experiments.training.ranks import join_ranks, process_rank

if TYPE_CHECKING:
    import torch

    from superdl.experiments.spec import Spec

__all__ = ["largest_batch"]


def largest_batch(spec: Spec, *, console: Console | None = None) -> BatchSizes:
    """Find it, print each size that was tried and what it took, and train nothing.

    Raises:
        SuperError: the data or the device cannot be had, or not even one image fits.

    """
    process = process_rank()
    device = pick_device(spec.device, process)
    console = (console or Console()) if process.rank == 0 else Console(quiet=True)

    def tell(line: str) -> None:
        say(console, line)

    seed_everything(spec.seed)
    with join_ranks(process, device) as ranks:
        # Opened for training: what is written in a format of its own is then what training reads.
        with shipped_steps_allowed(spec.recipe):
            data = images_of(spec, ranks, tell)
            with closing(opened_loader(spec, data.train, ranks, tell, training=True)) as loader:
                classes, share = len(loader.classes), -(-loader.sample_count // process.replicas)
        shape = StepShape(
            spec.model.name, classes, spec.recipe.crop, spec.training.precision, spec.training.threads
        )
        probe = _probe(shape, device)
        tell(
            f"the largest batch of {spec.model.name} with images of {spec.recipe.crop} pixels on "
            f"{probe.device}, in {probe.limit_bytes / 2**30:.2f} GiB"
        )
        found = find_batch_size(probe, share, tell)
        least = int(ranks.smallest([found.batch_size])[0])
    of_ranks = f" on each of {process.replicas} ranks" if process.replicas > 1 else ""
    whole = " (all training images that a rank has)" if least == share else ""
    tell(f"loader.batch_size={least} is the largest that fits{of_ranks}{whole}")
    return replace(found, batch_size=least)


def _probe(shape: StepShape, device: torch.device) -> CpuProbe | CudaProbe:
    if device.type == "cuda":
        return CudaProbe(shape, device)
    return CpuProbe(shape, share_of=int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
