"""``superdl run SPEC --find-batch-size``: the largest batch whose step fits: forward, backward, optimiser.

Steps are taken with images made up. On a GPU a step that runs out of memory does not fit. On a CPU a child
process takes steps of growing batches, and its peak memory tells whether the next would stay below the limit.
Each rank searches; the least of them is the answer.
"""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from rich.console import Console
from torch.nn.functional import cross_entropy

from superdl.experiments.models import build_model
from superdl.experiments.run.listeners import say
from superdl.experiments.run.training_run import images_of, opened_loader, shipped_steps_allowed
from superdl.experiments.training.device import (
    autocast,
    compute_type,
    pick_device,
    seed_everything,
    synchronise,
)
from superdl.experiments.training.ranks import join_ranks, process_rank
from superdl.sampler.embedded import available_memory_bytes
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from superdl.experiments.spec import Spec

__all__ = [
    "BatchSizes",
    "Probe",
    "StepShape",
    "TriedBatch",
    "find_batch_size",
    "largest_batch",
]

_SHARE = 0.8
"""Of the memory that is free, for the step: the rest is the loader's, and what else the trainer does."""
_MARGIN = 1.1
"""Sizes that were computed, not measured, are rounded up by it."""
_POINTS = 2


@dataclass(frozen=True, slots=True)
class TriedBatch:
    """One size: the most memory that its step took, or, where it was not run, what it would have taken."""

    batch_size: int
    fits: bool
    memory_bytes: int | None
    measured: bool


@dataclass(frozen=True, slots=True)
class BatchSizes:
    """What was found: the largest ``batch_size``, below ``limit_bytes``, and all that was tried for it."""

    batch_size: int
    device: str
    limit_bytes: int
    tried: tuple[TriedBatch, ...]


def find_batch_size(probe: Probe, at_most: int, tell: Callable[[str], None]) -> BatchSizes:
    """Double the size while it fits, then halve the gap between what fits and what does not.

    The gap is closed to a sixteenth of the size, since a batch is seldom worth tuning further. ``at_most`` is
    the number of samples that a rank has; ``tell`` gets a line for each size.

    Raises:
        ConfigError: a batch of one does not fit.

    """
    tried: list[TriedBatch] = []

    def fits(size: int) -> bool:
        one = probe.try_size(size)
        tried.append(one)
        tell(_line(one))
        return one.fits

    if not fits(1):
        raise ConfigError(
            f"not even a batch of one image fits into {_gib(probe.limit_bytes)} on {probe.device}; take a "
            "smaller model.name or recipe.crop, or a larger machine"
        )
    best, too_many = 1, None
    while best < at_most:
        size = min(2 * best, at_most)
        if not fits(size):
            too_many = size
            break
        best = size
    while too_many is not None and too_many - best > max(best // 16, 1):
        middle = (best + too_many) // 2
        if fits(middle):
            best = middle
        else:
            too_many = middle
    return BatchSizes(best, probe.device, probe.limit_bytes, tuple(tried))


def _line(one: TriedBatch) -> str:
    memory = "out of memory" if one.memory_bytes is None else _gib(one.memory_bytes)
    how = "" if one.measured else " as computed from smaller ones, not run"
    return f"batch {one.batch_size}: {memory}{how}, {'fits' if one.fits else 'does not fit'}"


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.2f} GiB"


@dataclass(frozen=True, slots=True)
class StepShape:
    """What a step's memory depends on, but for the size of the batch."""

    model: str
    classes: int
    side: int
    precision: str
    threads: int | None


class Probe:
    """Tries sizes: on a GPU in this process, on a CPU each in a child, below a share of free memory."""

    def __init__(
        self, shape: StepShape, device: torch.device, *, share_of: int = 1, limit_bytes: int | None = None
    ) -> None:
        """Set the limit; ``share_of`` processes of this host share a CPU's memory."""
        self._shape = shape
        self._on_gpu = device.type == "cuda"
        self._measured: list[tuple[int, int]] = []
        if self._on_gpu:
            self.device, self.limit_bytes = (
                torch.cuda.get_device_name(device),
                torch.cuda.mem_get_info(device)[0],
            )
        else:
            self.device = "cpu"
            self.limit_bytes = limit_bytes or int(_SHARE * available_memory_bytes() / share_of)

    def try_size(self, batch_size: int) -> TriedBatch:
        """Take a step of this size, or say that it would not fit; memory grows with the batch."""
        if self._on_gpu:
            peak = _peak_of(self._shape, "cuda", batch_size)
            return TriedBatch(batch_size, fits=peak is not None, memory_bytes=peak, measured=True)
        expected = self._expected_bytes(batch_size)
        if expected is not None and expected > self.limit_bytes:
            return TriedBatch(batch_size, fits=False, memory_bytes=expected, measured=False)
        try:
            with ProcessPoolExecutor(1, get_context("spawn")) as child:  # a process keeps its peak
                peak = child.submit(_peak_of, self._shape, "cpu", batch_size).result() or 0
        except BrokenProcessPool as error:
            raise ConfigError(
                f"the process that tried a batch of {batch_size} was killed; what it said is above, and if "
                "it said nothing, the machine ran out of memory"
            ) from error
        self._measured.append((batch_size, peak))
        return TriedBatch(batch_size, fits=peak <= self.limit_bytes, memory_bytes=peak, measured=True)

    def _expected_bytes(self, batch_size: int) -> int | None:
        """What a larger batch than those measured would take, on the line through the last two that grew."""
        grown = [(size, peak) for size, peak in sorted(self._measured) if peak > self._least(size)]
        if len(grown) < _POINTS or batch_size <= grown[-1][0]:
            return None
        (size, peak), (larger, its_peak) = grown[-2:]
        return int(its_peak + _MARGIN * (its_peak - peak) / (larger - size) * (batch_size - larger))

    def _least(self, batch_size: int) -> int:
        """The most that a smaller batch has taken: of small ones, what Python itself takes hides the rest."""
        return max((peak for size, peak in self._measured if size < batch_size), default=0)


def _peak_of(shape: StepShape, kind: str, batch_size: int) -> int | None:
    """Take two steps of images made up, as the optimiser's state comes with the first; the most memory that
    they took, in bytes. None: a GPU has not enough.

    Of a CPU it is the most that this process has had, which is a child for that reason. ``getrusage`` would
    count the parent's too on Linux; ``VmHWM`` does not.
    """
    device = torch.device(kind)
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    elif shape.threads is not None:
        torch.set_num_threads(shape.threads)
    try:
        model = build_model(shape.model, shape.classes, device, side=shape.side).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
        for _ in range(2):
            images = torch.randint(0, 256, (batch_size, 3, shape.side, shape.side), dtype=torch.uint8)
            images = images.to(device).contiguous(memory_format=torch.channels_last)
            labels = torch.randint(0, shape.classes, (batch_size,)).to(device)
            with autocast(device, compute_type(shape.precision, device)):
                loss = cross_entropy(model(images), labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            optimizer.step()
        synchronise(device)
    except torch.OutOfMemoryError:
        return None
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved()
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


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
        probe = Probe(shape, device, share_of=int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
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
