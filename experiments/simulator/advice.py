"""Predict a run (without validation) and its most useful change from a short probe: ``superdl advise``."""

from __future__ import annotations

import math
import os
import time
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from superdl.coordinator.core import maxmemory_for
from superdl.experiments.console import print_rows, say
from superdl.experiments.reporting.page import number, percent, seconds
from superdl.experiments.run.training_run import begun, executor_of, images_of, opened_loader
from superdl.experiments.simulator.predict import predict
from superdl.experiments.simulator.spec import (
    CacheSpec,
    DatasetSpec,
    FunctionsSpec,
    JobSpec,
    SimulationSpec,
    StoreSpec,
)
from superdl.experiments.training.ranks import process_rank
from superdl.experiments.training.steps import trial_step
from superdl.super_wire.display import counted
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.executors import EXECUTORS, RunsOn
from superdl.super_wire.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console

    from superdl.experiments.loaders import Batch, BatchMetrics, Loader
    from superdl.experiments.spec import Spec

# A longer epoch is simulated by a shorter one with a smaller cache. The cache still holds some batches, if
# the real one does, because look-ahead needs them.
_MAX_BATCHES = 400
_MIN_CACHED_BATCHES = 40

_MIN_SAVING = 0.05
_LITTLE_WAITING = 0.05
_MB, _GB = 2**20, 2**30
_STORE = StoreSpec(kind="directory", restore_s=0.0001)
_READING_S, _STEPS_S = 5.0, 5.0
_WARM_UP_STEPS = 2


@dataclass(frozen=True, slots=True)
class Forecast:
    """The prediction for a run. ``waiting`` is the share of time spent waiting after the first batch."""

    first_images_per_s: float  # first epoch
    later_images_per_s: float | None  # later epochs; None if there are none
    waiting: float
    wall_s: float


@dataclass(frozen=True, slots=True)
class Advice:
    """A measured run, its forecast, and the forecast with each possible change, best first."""

    measured: SimulationSpec
    forecast: Forecast
    changes: tuple[tuple[str, Forecast], ...]

    @property
    def best(self) -> str:
        """The most useful change, as a sentence."""
        if self.forecast.waiting < _LITTLE_WAITING:
            return "Data hardly limits this run. Only a faster step would make it faster."
        for name, forecast in self.changes:
            saved = 1 - forecast.wall_s / self.forecast.wall_s
            if saved >= _MIN_SAVING:
                return f"Most useful: {name}. The run would take {percent(saved)} less time."
        return "No change alone saves 5% of the time. The set is small, or several limits are close together."

    def to_mapping(self) -> dict[str, Any]:
        """Return the advice as plain values for JSON."""
        return asdict(self) | {"best": self.best}


def advice_of(measured: SimulationSpec, epochs: float | None = None) -> Advice:
    """Predict a run of one job on one dataset, unchanged and with each possible change. See `forecast_of`."""
    changes = [(name, forecast_of(changed, epochs)) for name, changed in _changes(measured)]
    return Advice(
        measured, forecast_of(measured, epochs), tuple(sorted(changes, key=lambda change: change[1].wall_s))
    )


def _changes(measured: SimulationSpec) -> Iterator[tuple[str, SimulationSpec]]:
    (data,), (job,) = measured.datasets, measured.jobs
    more = 2 * measured.functions.concurrency
    yield (
        f"functions for {more} requests at once (SUPER_SLOTS with more cores, data hosts, Lambda)",
        replace(measured, functions=replace(measured.functions, concurrency=more)),
    )
    enough_bytes = math.ceil(1.02 * data.samples * data.record_bytes)
    # Random recipes have new records in each epoch, which neither cache nor store keeps.
    if enough_bytes > measured.cache.budget_gb * _GB and not data.random:
        maxmemory = math.ceil(maxmemory_for(enough_bytes) / _MB)
        if measured.store.kind == "none":
            yield "a store (SUPER_STORE)", replace(measured, store=_STORE)
        yield (
            f"a cache for all samples, SUPER_CACHE_BYTES={maxmemory}mb",
            replace(measured, cache=CacheSpec(budget_gb=enough_bytes / _GB)),
        )
    workers = 2 * job.workers
    yield f"loader.num_workers={workers}", replace(measured, jobs=(replace(job, workers=workers),))


def forecast_of(measured: SimulationSpec, epochs: float | None = None) -> Forecast:
    """Simulate a run of one job on one dataset for ``epochs`` epochs (by default, the job's)."""
    (data,), (job,), cache_gb = measured.datasets, measured.jobs, measured.cache.budget_gb
    epochs = job.epochs if epochs is None else epochs
    batch = job.batch_size * job.replicas
    scale = min(1.0, _MAX_BATCHES * batch / data.samples)
    least_gb = min(cache_gb, _MIN_CACHED_BATCHES * batch * data.record_bytes / _GB)
    simulated = replace(
        measured,
        datasets=(replace(data, samples=max(batch, round(scale * data.samples))),),
        jobs=(replace(job, epochs=min(math.ceil(epochs), 2)),),  # later epochs are alike
        cache=CacheSpec(budget_gb=max(scale * cache_gb, least_gb)),
    )
    (predicted,) = predict(simulated).jobs
    # One simulated epoch stands for all later ones.
    first_s, *later_s = (epoch_s / scale for epoch_s in predicted.epochs_s)
    return Forecast(
        first_images_per_s=data.samples / first_s,
        later_images_per_s=data.samples / later_s[0] if later_s else None,
        waiting=predicted.stall_share,
        wall_s=first_s * min(epochs, 1.0) + sum(later_s) * max(epochs - 1, 0.0),
    )


def print_advice(advice: Advice, console: Console) -> None:
    """Print the forecasts for the unchanged run and for each change, and the best change."""
    measured = advice.measured
    (data,), (job,) = measured.datasets, measured.jobs
    say(
        console,
        f"measured: {seconds(job.step_s)} per step, {seconds(measured.functions.decode_s)} of function time "
        f"per sample, {measured.functions.concurrency} requests at once, {counted(job.replicas, 'rank')}, "
        f"{data.samples:,} samples of {data.record_bytes:,} bytes, "
        f"{1024 * measured.cache.budget_gb:,.0f} MiB of cache for them"
        f"{'' if measured.store.kind == 'none' else ' and a store'}",
    )
    heads = (
        "predicted, simulated",
        "first epoch\nimages/s",
        "later\nimages/s",
        "waiting in the\nsimulated epochs",
        "\ntotal",
    )
    rows = [
        (
            name,
            number(forecast.first_images_per_s),
            number(forecast.later_images_per_s),
            percent(forecast.waiting),
            seconds(forecast.wall_s),
        )
        for name, forecast in (("unchanged", advice.forecast), *advice.changes)
    ]
    print_rows(console, heads, rows)
    say(console, advice.best)


def advise(spec: Spec, log: Callable[[str], None], ranks: int = 1) -> Advice:
    """Probe this machine for about ten seconds, and predict a run of ``spec``.

    Args:
        spec: the run's spec.
        log: receives a message before each part of the probe.
        ranks: the number of ranks. Only one is probed, and all are assumed to be alike.

    Raises:
        ConfigError: the loader is not SUPER, or this process is one of several ranks.
        SuperError: the data, the loader or the device is not available.
    """
    if process_rank().replicas > 1:
        raise ConfigError(
            "superdl advise probes a single process, but this is one of several. Use --ranks, not torchrun."
        )
    if not spec.loader.runs_functions:
        raise ConfigError(
            f"superdl advise can only predict SUPER, but loader.kind is {spec.loader.kind}. Use --set "
            "loader.kind=super."
        )
    with begun(spec) as (rank, device), ExitStack() as stack:
        data = images_of(spec, rank, log)
        on_gpu = device.type == "cuda"
        loader = opened_loader(spec, data.train, rank, log, training=True, pin_memory=on_gpu)
        stack.enter_context(closing(loader))
        batches = _endless(loader)
        # First without a model, whose steps would slow down reading.
        log(f"reading {data.train.url} for {_READING_S:.0f} s")
        read = _read(batches)
        stats: Any = loader.job_stats()
        log(f"running steps of {spec.model.name} on {device.type} for {_STEPS_S:.0f} s")
        step_s, handover_s = _measure_steps(spec, batches, device, len(loader.classes))
    samples = sum(count for count, _ in read)
    function_s = sum(metrics.fetch_s + metrics.decode_s for _, metrics in read) / samples
    if stats.samples_produced:
        function_s = (stats.fetch_s + stats.decode_s + stats.push_s) / stats.samples_produced
    functions, kind = stats.capacity, EXECUTORS.get(executor_of(spec) or "")
    if kind is not None and kind.runs_on is RunsOn.THIS_HOST:
        # Count only functions with a core of their own while the model computes. Ranks with GPUs share
        # a host, ranks without one do not.
        busy, cores = ranks if on_gpu else torch.get_num_threads(), len(os.sched_getaffinity(0))
        functions = max(1, min(functions, cores - busy))
    steps = spec.training.steps_per_epoch
    record_bytes = max(1, sum(metrics.size_bytes for _, metrics in read) // samples)
    epochs = spec.epochs if steps is None else spec.epochs * steps * ranks / len(loader)
    read_s = max(median(metrics.read_s for _, metrics in read), 1e-6)
    measured = SimulationSpec(
        datasets=(
            DatasetSpec(
                samples=loader.sample_count,
                record_bytes=record_bytes,
                random=spec.recipe.steps is not None and Recipe(spec.recipe.steps).random,
            ),
        ),
        jobs=(
            JobSpec(
                batch_size=spec.loader.batch_size,
                replicas=ranks,
                step_s=step_s,
                handover_s=handover_s,
                epochs=math.ceil(epochs),
                workers=max(1, spec.loader.num_workers),
                read_gb_per_s=spec.loader.batch_size * record_bytes / read_s / _GB,
            ),
        ),
        functions=FunctionsSpec(kind="pool", concurrency=functions, decode_s=function_s, overhead_s=0.001),
        cache=CacheSpec(budget_gb=stats.budget_bytes / _GB),
        store=_STORE if stats.store else StoreSpec(),
    )
    return advice_of(measured, epochs)


def _endless(loader: Loader) -> Iterator[Batch]:
    while True:
        yield from loader


def _read(batches: Iterator[Batch]) -> list[tuple[int, BatchMetrics]]:
    read: list[tuple[int, BatchMetrics]] = []
    until_s = time.monotonic() + _READING_S
    while time.monotonic() < until_s or not any(samples for samples, _ in read):
        _, labels, metrics = next(batches)
        read.append((len(labels), metrics))
    return read


def _measure_steps(
    spec: Spec, batches: Iterator[Batch], device: torch.device, classes: int
) -> tuple[float, float]:
    """Return the times to take a training step while batches are being read and to receive a batch."""
    step = trial_step(spec, classes, device)
    steps_s: list[float] = []
    waits_s: list[float] = []
    until_s = time.monotonic() + _STEPS_S
    while len(steps_s) <= _WARM_UP_STEPS or time.monotonic() < until_s:
        began_s = time.monotonic()
        images, labels, _ = next(batches)
        received_s = time.monotonic()
        step(images, labels)
        waits_s.append(received_s - began_s)
        steps_s.append(time.monotonic() - received_s)
    # A low percentile, because higher ones include waiting for data.
    waits_s = sorted(waits_s[_WARM_UP_STEPS:])
    return median(steps_s[_WARM_UP_STEPS:]), waits_s[len(waits_s) // 10]
