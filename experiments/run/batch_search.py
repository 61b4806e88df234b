"""``superdl run SPEC --find-batch-size``: find the largest batch that fits into memory.

Steps use synthetic images, under the spec's strategy, in a new process per size and rank: a process keeps its
peak, or runs out of memory alone. A step that runs out of memory does not fit; on a CPU the system limits the
process to its part. The loader is open meanwhile, its workers run, and the batches that it would hold are
counted.
"""

from __future__ import annotations

import os
import resource
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import cross_entropy

from superdl.experiments.console import say
from superdl.experiments.models import build_model
from superdl.experiments.run.training_run import begun, console_of_rank, images_of, opened_loader
from superdl.experiments.training.device import (
    compute_type,
    make_strategy,
    pick_device,
    strategy_name,
    synchronise,
)
from superdl.experiments.training.ranks import OtherRankError, ProcessRank, Ranks, join_ranks
from superdl.experiments.training.updates import Updater
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.host import available_memory_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from superdl.experiments.console import Console
    from superdl.experiments.loaders import Loader
    from superdl.experiments.spec import Spec

__all__ = [
    "BatchSizes",
    "Probe",
    "TriedBatch",
    "find_batch_size",
    "largest_batch",
]

_SHARE = 0.8
"""Share of the free memory for step and loader: the trainer needs the rest for other things."""


@dataclass(frozen=True, slots=True)
class TriedBatch:
    """A size, and its step's peak memory, which is unknown if it does not fit.

    ``by_rank`` has each rank's peak. ``loader_bytes``, of the host's memory, are the batches that a rank's
    loader would hold; on a CPU they are included in ``memory_bytes``.
    """

    batch_size: int
    fits: bool
    memory_bytes: int | None
    by_rank: tuple[int, ...] = ()
    loader_bytes: int = 0


@dataclass(frozen=True, slots=True)
class BatchSizes:
    """The largest ``batch_size`` of a rank, below ``limit_bytes``, and all sizes tried."""

    batch_size: int
    device: str
    limit_bytes: int
    tried: tuple[TriedBatch, ...]
    strategy: str = "single"
    ranks: int = 1


def find_batch_size(probe: Probe, at_most: int, tell: Callable[[str], None]) -> BatchSizes:
    """Double the size while it fits, then halve the gap to what does not.

    The gap is closed to a sixteenth of the size. ``at_most`` is the number of samples that a rank has;
    ``tell`` receives a line for each size.

    Raises:
        ConfigError: a batch of one does not fit.
    """
    tried: list[TriedBatch] = []

    def fits(size: int) -> bool:
        tried_batch = probe.try_size(size)
        tried.append(tried_batch)
        tell(_line(tried_batch))
        return tried_batch.fits

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
    if len(one.by_rank) > 1:
        memory += f" (ranks: {', '.join(f'{peak / 2**30:.2f}' for peak in one.by_rank)})"
    loader = f", {_gib(one.loader_bytes)} in the loader" if one.loader_bytes >= _TOLD_FROM else ""
    return f"batch {one.batch_size}: {memory}{loader}, {'fits' if one.fits else 'does not fit'}"


_TOLD_FROM = 2**27


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.2f} GiB"


class Probe:
    """Tries sizes under a spec's strategy, on all ranks at once, in new processes.

    All ranks try the same sizes in the same order, and know each other's results.
    """

    def __init__(
        self, spec: Spec, classes: int, device: torch.device, ranks: Ranks, *, host_bytes: int
    ) -> None:
        """Set the limit: a GPU's free memory, else this rank's ``host_bytes``."""
        self._spec = spec
        self._classes = classes
        self._ranks = ranks
        self._on_gpu = device.type == "cuda"
        self._tries = 0
        self._fitted = False  # whether any size has fitted
        self._host_bytes = int(ranks.smallest([host_bytes])[0])
        self.device, self.limit_bytes = "cpu", self._host_bytes
        if self._on_gpu:
            self.device = torch.cuda.get_device_name(device)
            self.limit_bytes = int(ranks.smallest([torch.cuda.mem_get_info(device)[0]])[0])

    def _held_by_loader(self, batch_size: int) -> int:
        """Return a loader's bytes: two batches per worker, one in transfer, one in use."""
        batches = 2 * max(self._spec.loader.num_workers, 1) + 2
        return batches * batch_size * 3 * self._spec.recipe.crop**2

    def try_size(self, batch_size: int) -> TriedBatch:
        """Take a step of this size on all ranks.

        Raises:
            ConfigError: the smallest size failed for another reason than memory.
        """
        loader = self._held_by_loader(batch_size)
        room = self._host_bytes - loader
        peaks = self._peaks(batch_size, room) if room > 0 else ()
        if not peaks:
            return TriedBatch(batch_size, fits=False, memory_bytes=None, loader_bytes=loader)
        self._fitted = True
        memory = max(peaks) + (0 if self._on_gpu else loader)
        return TriedBatch(batch_size, True, memory, by_rank=peaks, loader_bytes=loader)

    def _peaks(self, batch_size: int, room: int) -> tuple[int, ...]:
        """Return the step's peak bytes by rank; empty if a rank has too little memory."""
        self._tries += 1
        peak, failure = 0, None
        tried = (self._spec, self._classes, self._ranks.process, f"batch-{self._tries}", batch_size, room)
        try:
            with ProcessPoolExecutor(1, get_context("spawn")) as child:
                peak = child.submit(_peak_of, *tried).result()
        except (RuntimeError, MemoryError, OtherRankError) as error:
            failure = error
        is_short = isinstance(failure, torch.OutOfMemoryError | MemoryError)
        short, failed = self._ranks.largest([float(is_short), float(failure is not None)])
        if failure is not None and not short and not self._fitted:  # later: too little memory
            raise ConfigError(f"a step of {batch_size} image(s) failed: {failure}") from failure
        return () if failed else tuple(int(maximum) for maximum in self._ranks.gathered(torch.tensor(peak)))


def _peak_of(spec: Spec, classes: int, process: ProcessRank, group: str, batch_size: int, room: int) -> int:
    """Take two steps on synthetic images and return their peak memory in bytes.

    All ranks call this at once, each in a new process. On a CPU it may use ``room`` bytes.

    Raises:
        OutOfMemoryError: a GPU has too little memory.
        RuntimeError: a CPU has too little memory, or the step failed otherwise.
        OtherRankError: another rank failed.
    """
    device = pick_device(spec.device, process)
    if device.type == "cpu":
        # The limit is on mapped memory, of which only a part is resident.
        most = max(_memory("VmData") + room - _memory("VmRSS"), 0)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    name = strategy_name(spec.training.strategy, process)
    if spec.training.threads is not None:
        torch.set_num_threads(spec.training.threads)
    with join_ranks(process, device, alone=name == "fsdp", group=group):
        model = build_model(spec.model.name, classes, device, side=spec.recipe.crop).train()
        strategy = make_strategy(name, model, device, compute_type(spec.training.precision, device))
        scaled_on = device.type if strategy.scales else None
        updater = Updater(strategy.model, spec.optimizer, epoch_steps=10, epochs=1, scaled_on=scaled_on)
        # The first step creates the optimiser's state: the second has the peak.
        for _ in range(2):
            size = max(batch_size, 2)  # batch norm over one pixel needs two images
            shape = (size, 3, spec.recipe.crop, spec.recipe.crop)
            images = torch.randint(0, 256, shape, dtype=torch.uint8).to(device)
            labels = torch.randint(0, classes, (size,)).to(device)
            with strategy.computing():
                loss = cross_entropy(
                    strategy.model(images.contiguous(memory_format=torch.channels_last)), labels
                )
            updater.update(loss)
        synchronise(device)
        # On Linux getrusage counts the parent's memory too; VmHWM does not.
        return torch.cuda.max_memory_reserved() if device.type == "cuda" else _memory("VmHWM")


def _memory(name: str) -> int:
    """Return a figure of this process's memory in bytes, by its name in Linux."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def largest_batch(spec: Spec, *, console: Console | None = None) -> BatchSizes:
    """Find the largest batch, and print each size tried with its memory.

    Raises:
        SuperError: the data or the device is not available, or not even one image fits.
    """
    print_line = partial(say, console_of_rank(console))
    with begun(spec) as (ranks, device, strategy):
        process = ranks.process
        # Opened for training, so that a converted format is written as training reads it. Batches have one
        # image, since the memory for larger batches in the loader is computed.
        single_spec = replace(spec, loader=replace(spec.loader, batch_size=1))
        data = images_of(spec, ranks, print_line)
        loader = opened_loader(single_spec, data.train, ranks, print_line, training=True)
        with closing(loader):
            next(iter(loader))  # starts the workers
            ranks.barrier()
            share = -(-loader.sample_count // process.replicas)
            probe = Probe(spec, len(loader.classes), device, ranks, host_bytes=_free_bytes(spec, loader))
            print_line(
                f"the largest batch of {spec.model.name} with images of {spec.recipe.crop} pixels, "
                f"{strategy} on {process.replicas} rank(s), {probe.device}, "
                f"in {_gib(probe.limit_bytes)} of each"
            )
            sizes = find_batch_size(probe, share, print_line)
    of_ranks = f" on each of {process.replicas} ranks" if process.replicas > 1 else ""
    whole = " (all training images that a rank has)" if sizes.batch_size == share else ""
    print_line(f"loader.batch_size={sizes.batch_size} is the largest that fits{of_ranks}{whole}")
    return replace(sizes, strategy=strategy, ranks=process.replicas)


def _free_bytes(spec: Spec, loader: Loader) -> int:
    """Return a rank's part of the host's free memory, less what its cache may still take."""
    free = available_memory_bytes()
    if spec.loader.runs_functions and not (spec.loader.coordinator or os.environ.get("SUPER_COORDINATOR")):
        stats: Any = loader.job_stats()
        free -= max(stats.budget_bytes - stats.resident_bytes, 0)
    return max(int(_SHARE * free / int(os.environ.get("LOCAL_WORLD_SIZE", "1"))), 0)
