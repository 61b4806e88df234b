"""The probe of ``superdl advise``: measure the parts of a run on this machine."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import cross_entropy

from superdl.experiments.advising.advice import Measured, advice_of
from superdl.experiments.models import build_model
from superdl.experiments.run.training_run import begun, executor_of, images_of, opened_loader
from superdl.experiments.training.device import (
    compute_type,
    make_strategy,
    synchronise,
)
from superdl.experiments.training.ranks import process_rank
from superdl.experiments.training.updates import Updater
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.executors import EXECUTORS, RunsOn
from superdl.super_wire.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from superdl.experiments.advising.advice import Advice
    from superdl.experiments.loaders import Batch, Loader
    from superdl.experiments.spec import Spec

__all__ = ["advise", "probe"]

_READING_S, _STEPS_S = 5.0, 5.0
_WARM_UP_STEPS = 2


def advise(spec: Spec, tell: Callable[[str], None], ranks: int = 1) -> Advice:
    """Probe this machine for some ten seconds, and predict a run of ``spec``.

    Args:
        spec: the run's spec.
        tell: receives a line for people before each part.
        ranks: of the run; only this process is probed, and all ranks are assumed to be alike.

    Raises:
        ConfigError: the loader is not SUPER, or this is one of several ranks.
        SuperError: the data, the loader or the device is not available.
    """
    return advice_of(probe(spec, tell, ranks), spec)


def probe(spec: Spec, tell: Callable[[str], None], count: int = 1) -> Measured:
    """Read batches for some seconds, then take steps, for a run of ``count`` ranks.

    Raises:
        ConfigError: the loader is not SUPER, or this is one of several ranks.
        SuperError: the data, the loader or the device is not available.
    """
    if process_rank().replicas > 1:
        raise ConfigError(
            "one process is probed, and this is one of several: start it without torchrun, with --ranks"
        )
    if not spec.loader.runs_functions:
        raise ConfigError(
            f"what is foretold is SUPER, and loader.kind is {spec.loader.kind}: --set loader.kind=super"
        )
    with begun(spec) as (ranks, device, _), ExitStack() as stack:
        data = images_of(spec, ranks, tell)
        on_gpu = device.type == "cuda"
        loader = opened_loader(spec, data.train, ranks, tell, training=True, pin_memory=on_gpu)
        stack.enter_context(closing(loader))
        batches = _without_end(loader)
        tell(f"reading {data.train.url}, for {_READING_S:.0f} s")
        read = _read(batches)
        stats: Any = loader.job_stats()
        tell(f"steps of {spec.model.name} on {device.type}, for {_STEPS_S:.0f} s")
        step_s, handover_s = _step_s(spec, batches, device, len(loader.classes))
    function_s = read.records_s / read.samples
    if stats.samples_produced:
        function_s = (stats.fetch_s + stats.decode_s + stats.push_s) / stats.samples_produced
    functions, kind = stats.capacity, EXECUTORS.get(executor_of(spec) or "")
    if kind is not None and kind.runs_on is RunsOn.THIS_HOST:
        # Only those that have a core while the model computes. GPUs are on one host; a rank without one has a
        # separate host.
        busy, cores = count if on_gpu else torch.get_num_threads(), len(os.sched_getaffinity(0))
        functions = max(1, min(functions, cores - busy))
    steps = spec.training.steps_per_epoch
    return Measured(
        samples=loader.sample_count,
        batch_size=spec.loader.batch_size,
        epochs=spec.epochs if steps is None else spec.epochs * steps * count / len(loader),
        workers=spec.loader.num_workers,
        step_s=step_s,
        handover_s=handover_s,
        function_s=function_s,
        read_s=max(median(read.read_s), 1e-6),
        record_bytes=max(1, read.size_bytes // read.samples),
        functions=functions,
        cache_bytes=stats.budget_bytes,
        stored=bool(stats.store),
        random=spec.recipe.steps is not None and Recipe(spec.recipe.steps).random,
        ranks=count,
    )


@dataclass(slots=True)
class _Read:
    """The batches read: seconds of workers for each, and sums."""

    read_s: list[float] = field(default_factory=list)
    samples: int = 0
    size_bytes: int = 0
    records_s: float = 0.0


def _without_end(loader: Loader) -> Iterator[Batch]:
    """Yield the batches of one epoch after another."""
    while True:
        yield from loader


def _read(batches: Iterator[Batch]) -> _Read:
    """Read for a few seconds, as fast as batches arrive."""
    read = _Read()
    until_s = time.monotonic() + _READING_S
    while time.monotonic() < until_s or not read.samples:
        _, labels, figures = next(batches)
        read.read_s.append(figures.read_s)
        read.records_s += figures.fetch_s + figures.decode_s
        read.samples += len(labels)
        read.size_bytes += figures.size_bytes
    return read


def _step_s(spec: Spec, batches: Iterator[Batch], device: torch.device, classes: int) -> tuple[float, float]:
    """Return the seconds of a step while batches are read, and of taking over a batch."""
    model = build_model(spec.model.name, classes, device, side=spec.recipe.crop).train()
    strategy = make_strategy("single", model, device, compute_type(spec.training.precision, device))
    scaled_on = device.type if strategy.scales else None
    updater = Updater(strategy.model, spec.optimizer, epoch_steps=10_000, epochs=1, scaled_on=scaled_on)
    steps_s: list[float] = []
    waits_s: list[float] = []
    until_s = time.monotonic() + _STEPS_S
    while len(steps_s) <= _WARM_UP_STEPS or time.monotonic() < until_s:
        began_s = time.monotonic()
        images, labels, _ = next(batches)
        got_s = time.monotonic()
        with strategy.computing():
            loss = cross_entropy(strategy.model(images.to(device)), labels.to(device))
        updater.update(loss)
        synchronise(device)
        waits_s.append(got_s - began_s)
        steps_s.append(time.monotonic() - got_s)
    # A low percentile, since higher ones include waiting for batches.
    waits_s = sorted(waits_s[_WARM_UP_STEPS:])
    return median(steps_s[_WARM_UP_STEPS:]), waits_s[len(waits_s) // 10]
