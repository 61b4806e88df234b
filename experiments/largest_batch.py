"""``superdl run SPEC --find-batch-size``: the largest batch that a rank of this spec can train with here.

Finds what the model needs to know of the data, and searches on each rank; the least of them is the answer.
How is left to `experiments.training.batch_size`.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING

from rich.console import Console

from superdl.experiments.data import prepare_data
from superdl.experiments.device import pick_device, seed_everything
from superdl.experiments.executor import embedded_executor
from superdl.experiments.loaders import LoaderRequest, open_loader
from superdl.experiments.ranks import join_ranks, place_of
from superdl.experiments.run_state import say
from superdl.experiments.step_modules import shipped_steps_allowed
from superdl.experiments.training.batch_size import BatchSizes, find_batch_size
from superdl.experiments.training.memory_probe import CpuProbe, CudaProbe, StepShape

if TYPE_CHECKING:
    import torch

    from superdl.experiments.ranks import Ranks
    from superdl.experiments.spec import Spec

__all__ = ["largest_batch"]


def largest_batch(spec: Spec, *, console: Console | None = None) -> BatchSizes:
    """Find it, print each size that was tried and what it took, and train nothing.

    Raises:
        SuperError: the data or the device cannot be had, or not even one image fits.

    """
    place = place_of()
    device = pick_device(spec.device, place)
    console = (console or Console()) if place.rank == 0 else Console(quiet=True)
    seed_everything(spec.seed)
    with join_ranks(place, device) as ranks:
        classes, samples = _of_the_data(spec, ranks, console)
        shape = StepShape(
            spec.model.name, classes, spec.recipe.crop, spec.training.precision, spec.training.threads
        )
        share = -(-samples // place.replicas)
        with _probe(shape, device) as probe:
            say(
                console,
                f"the largest batch of {spec.model.name} with images of {spec.recipe.crop} pixels on "
                f"{probe.device}, in {probe.limit_bytes / 2**30:.2f} GiB",
            )
            found = find_batch_size(probe, share, lambda line: say(console, line))
        least = int(ranks.smallest([found.batch_size])[0])
    found = BatchSizes(least, found.device, found.limit_bytes, found.tried)
    of_ranks = f" on each of {place.replicas} ranks" if place.replicas > 1 else ""
    whole = " (all training images that a rank has)" if least == share else ""
    say(console, f"loader.batch_size={least} is the largest that fits{of_ranks}{whole}")
    return found


def _probe(shape: StepShape, device: torch.device) -> CpuProbe | CudaProbe:
    if device.type == "cuda":
        return CudaProbe(shape, device)
    return CpuProbe(shape, share_of=int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def _of_the_data(spec: Spec, ranks: Ranks, console: Console) -> tuple[int, int]:
    """Classes and training samples, which the loader knows once it is open."""
    with ExitStack() as stack:
        stack.enter_context(shipped_steps_allowed(spec.recipe))
        stack.enter_context(embedded_executor(spec))
        with ranks.one_of_each_host_first():
            data = prepare_data(spec.data, lambda line: say(console, line))
        request = LoaderRequest(
            source=data.train,
            recipe=spec.recipe,
            loader=spec.loader,
            training=True,  # what is written in a format of its own is then what training reads
            seed=spec.seed,
            pin_memory=False,
            rank=ranks.place.rank,
            replicas=ranks.place.replicas,
            tell=lambda line: say(console, line),
        )
        loader = open_loader(spec.loader.kind, request)
        stack.callback(loader.close)
        return len(loader.classes), loader.sample_count
