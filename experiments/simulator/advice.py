"""Predict a run without validation from a short probe, and the most useful change: ``superdl advise``."""

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
from superdl.experiments.reporting.page import percent, seconds
from superdl.experiments.run.training_run import begun, executor_of, images_of, opened_loader
from superdl.experiments.simulator.spec import (
    CacheSpec,
    DatasetSpec,
    FunctionsSpec,
    JobSpec,
    SimulationSpec,
    StoreSpec,
    build_world_model,
)
from superdl.experiments.simulator.world import World
from superdl.experiments.training.ranks import process_rank
from superdl.experiments.training.steps import trial_step
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.executors import EXECUTORS, RunsOn
from superdl.super_wire.recipe import Recipe
from superdl.super_wire.redaction import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console

    from superdl.experiments.loaders import Batch, BatchFigures, Loader
    from superdl.experiments.spec import Spec

# A longer epoch is simulated as a shorter one with a smaller cache, but the cache holds at least some batches
# if the real one does: fewer would prevent look-ahead.
_BATCHES_MAX = 400
_CACHED_BATCHES_MIN = 40

_WORTH_WHILE = 0.05
_LITTLE_WAITING = 0.05
_MB, _GB = 2**20, 2**30


@dataclass(frozen=True, slots=True)
class Measured:
    """Times and sizes of a run's parts, on the machine where they were measured."""

    samples: int
    batch_size: int
    epochs: float
    workers: int
    # Of a batch: its step, and taking it over when it is finished.
    step_s: float
    handover_s: float
    function_s: float  # per sample
    read_s: float  # a worker's time for a cached batch
    record_bytes: int
    functions: int  # requests processed at once while the model computes
    cache_bytes: int  # space for records, each of record_bytes
    stored: bool
    random: bool
    ranks: int = 1

    @property
    def set_bytes(self) -> int:
        """The cache memory that all samples need."""
        return self.samples * self.record_bytes


@dataclass(frozen=True, slots=True)
class Forecast:
    """The prediction for a run: its first epoch, later epochs and the total. Costs are in US dollars."""

    first_images_per_s: float
    first_waiting: float  # a share of the epoch
    later_images_per_s: float | None  # None with only one epoch
    later_waiting: float | None
    wall_s: float
    usd: float | None  # None if the spec names no machine


@dataclass(frozen=True, slots=True)
class Advice:
    """The measurements, and the forecasts without changes and with each change, best first."""

    measured: Measured
    forecast: Forecast
    changes: tuple[tuple[str, Forecast], ...]

    @property
    def best(self) -> str:
        """The most useful change, as a sentence."""
        waiting = self.forecast.first_waiting, self.forecast.later_waiting
        if max(filter(None, waiting), default=0.0) < _LITTLE_WAITING:
            return "Data hardly limits this run: only a faster step would make it faster."
        for name, forecast in self.changes:
            saved = 1 - forecast.wall_s / self.forecast.wall_s
            if saved >= _WORTH_WHILE:
                return f"Most useful: {name}. The run would take {percent(saved)} less time."
        return "No change saves 5% of the time: the set is small, or several limits are close together."

    def to_mapping(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self) | {"best": self.best}


def advice_of(measured: Measured, spec: Spec) -> Advice:
    """Predict a run and its changes from measurements and the prices of the spec's machines."""
    hour_usd = _hour_usd(spec)
    now = forecast_of(measured, hour_usd)
    changes = [(name, forecast_of(changed, hour_usd)) for name, changed in _changes(measured)]
    return Advice(measured, now, tuple(sorted(changes, key=lambda change: change[1].wall_s)))


def _changes(measured: Measured) -> Iterator[tuple[str, Measured]]:
    """Yield possible changes, each with the measurements that it would lead to."""
    more = 2 * measured.functions
    yield (
        f"functions for {more} requests at once (SUPER_SLOTS with more cores, data hosts, Lambda)",
        replace(measured, functions=more),
    )
    # Random recipes make new records each epoch, which neither cache nor store keeps.
    if measured.set_bytes > measured.cache_bytes and not measured.random:
        enough = math.ceil(1.02 * measured.set_bytes)
        maxmemory = math.ceil(maxmemory_for(enough) / _MB)
        if not measured.stored:
            yield "a store (SUPER_STORE)", replace(measured, stored=True)
        yield (
            f"a cache for all samples, SUPER_CACHE_BYTES={maxmemory}mb",
            replace(measured, cache_bytes=enough),
        )
    workers = max(2, 2 * measured.workers)
    yield f"loader.num_workers={workers}", replace(measured, workers=workers)


def forecast_of(measured: Measured, hour_usd: float | None = None) -> Forecast:
    """Simulate a measured run. ``hour_usd`` is the hourly price of its machines."""
    epochs = max(1, math.ceil(measured.epochs))
    # All epochs after the first are alike.
    simulated = min(epochs, 2)
    batches = measured.samples / (measured.batch_size * measured.ranks)
    scale = min(1.0, _BATCHES_MAX / max(batches, 1.0))
    batch_bytes = measured.batch_size * measured.ranks * measured.record_bytes
    cache_bytes = max(
        scale * measured.cache_bytes, min(measured.cache_bytes, _CACHED_BATCHES_MIN * batch_bytes)
    )
    model = build_world_model(
        SimulationSpec(
            datasets=(
                DatasetSpec(
                    samples=max(measured.batch_size * measured.ranks, round(scale * measured.samples)),
                    record_bytes=measured.record_bytes,
                    random=measured.random,
                ),
            ),
            jobs=(
                JobSpec(
                    batch_size=measured.batch_size,
                    replicas=measured.ranks,
                    step_s=measured.step_s,
                    handover_s=measured.handover_s,
                    epochs=simulated,
                    workers=max(1, measured.workers),
                    read_gb_per_s=batch_bytes / measured.ranks / measured.read_s / _GB,
                ),
            ),
            functions=FunctionsSpec(
                kind="pool", concurrency=measured.functions, decode_s=measured.function_s, overhead_s=0.001
            ),
            cache=CacheSpec(budget_gb=cache_bytes / _GB),
            store=StoreSpec(kind="directory", restore_s=0.0001) if measured.stored else StoreSpec(),
        )
    )
    # The coordinator's own core plays the run in a simulated world.
    (trainers,) = World(model, log=False).run().trainers.values()
    slowest = [
        # The slowest rank determines a pass.
        max(
            (trainer.passes[epoch] for trainer in trainers),
            key=lambda figures: figures.ended_s - figures.began_s,
        )
        for epoch in range(simulated)
    ]
    walls_s = [(figures.ended_s - figures.began_s) / scale for figures in slowest]
    rates = [measured.samples / wall_s for wall_s in walls_s]
    wait_shares = [figures.wait_s / (figures.ended_s - figures.began_s) for figures in slowest]
    has_later = epochs > 1
    wall_s = walls_s[0] + (measured.epochs - 1) * walls_s[-1] if has_later else measured.epochs * walls_s[0]
    return Forecast(
        first_images_per_s=rates[0],
        first_waiting=wait_shares[0],
        later_images_per_s=rates[-1] if has_later else None,
        later_waiting=wait_shares[-1] if has_later else None,
        wall_s=wall_s,
        usd=None if hour_usd is None else hour_usd * wall_s / 3600,
    )


def _hour_usd(spec: Spec) -> float | None:
    from superdl.cost.bill import PaidByHour, prices_for

    hired = PaidByHour(**asdict(spec.cost))
    prices = prices_for(hired, os.environ.get("SUPER_PRICES"))
    if hired.machine is None:
        return None
    usd = hired.machines * prices.machine(hired.machine).hour
    if hired.data_machine is not None:
        usd += hired.data_machines * prices.machine(hired.data_machine).hour
    if hired.cache_node is not None:
        usd += hired.cache_nodes * prices.cache_node(hired.cache_node).hour
    return usd


def print_advice(advice: Advice, console: Console) -> None:
    """Print the forecast beside those with changes, and the best change."""
    measured = advice.measured
    say(
        console,
        f"measured: {seconds(measured.step_s)} per step, {seconds(measured.function_s)} of function time "
        f"per sample, {measured.functions} requests at once, {counted(measured.ranks, 'rank')}, "
        f"{measured.samples:,} samples of "
        f"{measured.record_bytes:,} bytes, {measured.cache_bytes / _MB:,.0f} MiB of cache for them"
        f"{' and a store' if measured.stored else ''}",
    )
    figures = ("first epoch\nimages/s", "\nwaiting", "later\nimages/s", "\nwaiting", "total", "$")
    forecasts = (("unchanged", advice.forecast), *advice.changes)
    rows = [(name, *_cells(forecast)) for name, forecast in forecasts]
    print_rows(console, ("predicted, simulated", *figures), rows)
    say(console, advice.best)


def _cells(forecast: Forecast) -> Iterator[str]:
    yield f"{forecast.first_images_per_s:,.0f}"
    yield percent(forecast.first_waiting)
    yield "-" if forecast.later_images_per_s is None else f"{forecast.later_images_per_s:,.0f}"
    yield "-" if forecast.later_waiting is None else percent(forecast.later_waiting)
    yield seconds(forecast.wall_s)
    yield "-" if forecast.usd is None else f"{forecast.usd:.2g}"


_READING_S, _STEPS_S = 5.0, 5.0
_WARM_UP_STEPS = 2


def advise(spec: Spec, log: Callable[[str], None], ranks: int = 1) -> Advice:
    """Probe this machine for about ten seconds, and predict a run of ``spec``.

    Args:
        spec: the run's spec.
        log: receives a message before each part.
        ranks: the ranks of the run. Only this process is probed, and all ranks are assumed to be alike.

    Raises:
        ConfigError: the loader is not SUPER, or this is one of several ranks.
        SuperError: the data, the loader or the device is not available.
    """
    return advice_of(_probe(spec, log, ranks), spec)


def _probe(spec: Spec, log: Callable[[str], None], count: int) -> Measured:
    if process_rank().replicas > 1:
        raise ConfigError(
            "only one process can be probed, but this is one of several: use --ranks instead of torchrun"
        )
    if not spec.loader.runs_functions:
        raise ConfigError(
            f"only SUPER can be predicted, but loader.kind is {spec.loader.kind}: use --set loader.kind=super"
        )
    with begun(spec) as (ranks, device), ExitStack() as stack:
        data = images_of(spec, ranks, log)
        on_gpu = device.type == "cuda"
        loader = opened_loader(spec, data.train, ranks, log, training=True, pin_memory=on_gpu)
        stack.enter_context(closing(loader))
        batches = _without_end(loader)
        # First without a model, whose steps would slow the reading.
        log(f"reading {data.train.url} for {_READING_S:.0f} s")
        read = _read(batches)
        stats: Any = loader.job_stats()
        log(f"running steps of {spec.model.name} on {device.type} for {_STEPS_S:.0f} s")
        step_s, handover_s = _step_s(spec, batches, device, len(loader.classes))
    samples = sum(count for count, _ in read)
    function_s = sum(figures.fetch_s + figures.decode_s for _, figures in read) / samples
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
        read_s=max(median(figures.read_s for _, figures in read), 1e-6),
        record_bytes=max(1, sum(figures.size_bytes for _, figures in read) // samples),
        functions=functions,
        cache_bytes=stats.budget_bytes,
        stored=bool(stats.store),
        random=spec.recipe.steps is not None and Recipe(spec.recipe.steps).random,
        ranks=count,
    )


def _without_end(loader: Loader) -> Iterator[Batch]:
    while True:
        yield from loader


def _read(batches: Iterator[Batch]) -> list[tuple[int, BatchFigures]]:
    """Read batches for some seconds, and return the samples and the figures of each batch."""
    read: list[tuple[int, BatchFigures]] = []
    until_s = time.monotonic() + _READING_S
    while time.monotonic() < until_s or not any(samples for samples, _ in read):
        _, labels, figures = next(batches)
        read.append((len(labels), figures))
    return read


def _step_s(spec: Spec, batches: Iterator[Batch], device: torch.device, classes: int) -> tuple[float, float]:
    """Return how many seconds a step takes while batches are read, and how many receiving a batch takes."""
    step = trial_step(spec, classes, device)
    steps_s: list[float] = []
    waits_s: list[float] = []
    until_s = time.monotonic() + _STEPS_S
    while len(steps_s) <= _WARM_UP_STEPS or time.monotonic() < until_s:
        began_s = time.monotonic()
        images, labels, _ = next(batches)
        got_s = time.monotonic()
        step(images, labels)
        waits_s.append(got_s - began_s)
        steps_s.append(time.monotonic() - got_s)
    # A low percentile, since higher ones include waiting for batches.
    waits_s = sorted(waits_s[_WARM_UP_STEPS:])
    return median(steps_s[_WARM_UP_STEPS:]), waits_s[len(waits_s) // 10]
