"""Predict a run from a short probe, and find the change that helps most.

The probe reads batches through the run's own loader, first without a model, then with its steps. The
simulator (:mod:`superdl.experiments.simulator`) then plays the run, and each change that users could make,
with the coordinator's own core. Validation is left out.
"""

from __future__ import annotations

import math
import os
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from superdl.coordinator.core import maxmemory_for
from superdl.experiments.console import print_rows, say
from superdl.experiments.reporting.quantities import percent, seconds
from superdl.experiments.simulator.spec import (
    CacheSpec,
    DatasetSpec,
    FunctionsSpec,
    JobSpec,
    SimulationSpec,
    StoreSpec,
)
from superdl.experiments.simulator.world import World
from superdl.experiments.simulator.world_model import build_world_model
from superdl.super_wire.redaction import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from superdl.experiments.spec import Spec

__all__ = ["Advice", "Forecast", "Measured", "advice_of", "foretold", "print_advice"]

_BATCHES_MAX = 400
"""A longer epoch is simulated as a shorter one with a smaller cache,"""

_CACHED_BATCHES_MIN = 40
"""but the cache holds at least this many batches if the real one does: fewer would prevent lookahead."""

_WORTH_WHILE = 0.05
_LITTLE_WAITING = 0.05
_MB, _GB = 2**20, 2**30


@dataclass(frozen=True, slots=True)
class Measured:
    """Times and sizes of a run's parts, on the machine where they were measured.

    ``step_s`` is per batch, ``handover_s`` the time to take over a finished batch, ``function_s`` per sample,
    ``read_s`` a worker's time for a cached batch. Functions process ``functions`` requests at once while the
    model computes. ``cache_bytes`` is the space for records, each of ``record_bytes``; ``stored`` is set if
    there is a store too.
    """

    samples: int
    batch_size: int
    epochs: float
    workers: int
    step_s: float
    handover_s: float
    function_s: float
    read_s: float
    record_bytes: int
    functions: int
    cache_bytes: int
    stored: bool
    random: bool
    ranks: int = 1

    @property
    def set_bytes(self) -> int:
        """Cache memory for all samples."""
        return self.samples * self.record_bytes


@dataclass(frozen=True, slots=True)
class Forecast:
    """The prediction for a run: its first epoch, later ones, all of it; US dollars.

    Waiting is a share of an epoch. Figures of later epochs are None if there is only one; ``usd`` is None if
    the spec names no machine.
    """

    first_images_per_s: float
    first_waiting: float
    later_images_per_s: float | None
    later_waiting: float | None
    wall_s: float
    usd: float | None


@dataclass(frozen=True, slots=True)
class Advice:
    """The measurements, and the forecasts without and with each change, best first."""

    measured: Measured
    forecast: Forecast
    changes: tuple[tuple[str, Forecast], ...]

    @property
    def best(self) -> str:
        """The change that helps most, in a sentence."""
        waiting = self.forecast.first_waiting, self.forecast.later_waiting
        if max(filter(None, waiting), default=0.0) < _LITTLE_WAITING:
            return "Data hardly limits this run: only a faster step would make it faster."
        for name, forecast in self.changes:
            saved = 1 - forecast.wall_s / self.forecast.wall_s
            if saved >= _WORTH_WHILE:
                return f"What helps most: {name}. It would take {percent(saved)} less time."
        return "None of these changes helps by a twentieth: the set is small, or several limits are near."

    def to_mapping(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self) | {"best": self.best}


def advice_of(measured: Measured, spec: Spec) -> Advice:
    """Predict a run and its changes from measurements and the prices of the spec's machines."""
    hour_usd = _hour_usd(spec)
    now = foretold(measured, hour_usd)
    changes = [(name, foretold(changed, hour_usd)) for name, changed in _changes(measured)]
    return Advice(measured, now, tuple(sorted(changes, key=lambda one: one[1].wall_s)))


def _changes(measured: Measured) -> Iterator[tuple[str, Measured]]:
    """Yield possible changes, each with the measurements it would give."""
    more = 2 * measured.functions
    yield (
        f"functions for {more} requests at once (SUPER_SLOTS with more cores, data hosts, Lambda)",
        replace(measured, functions=more),
    )
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


def foretold(measured: Measured, hour_usd: float | None = None) -> Forecast:
    """Simulate a measured run; ``hour_usd`` is the hourly price of its machines."""
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
    """Return the hourly price of the spec's machines; None if it names none."""
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


# ------------------------------------------------------------------------------------- what people see


def print_advice(advice: Advice, console: Console) -> None:
    """Print the forecast beside its changes, and the best change."""
    measured = advice.measured
    say(
        console,
        f"measured: a step {seconds(measured.step_s)}, a sample {seconds(measured.function_s)} of a "
        f"function, {measured.functions} requests at once, {counted(measured.ranks, 'rank')}, "
        f"{measured.samples:,} samples of "
        f"{measured.record_bytes:,} bytes, {measured.cache_bytes / _MB:,.0f} MiB of cache for them"
        f"{' and a store' if measured.stored else ''}",
    )
    figures = ("first epoch\nimages/s", "\nwaiting", "later\nimages/s", "\nwaiting", "in all", "$")
    forecasts = (("as it is", advice.forecast), *advice.changes)
    rows = [(name, *_cells(forecast)) for name, forecast in forecasts]
    print_rows(console, ("foretold, simulated", *figures), rows)
    say(console, advice.best)


def _cells(forecast: Forecast) -> Iterator[str]:
    yield f"{forecast.first_images_per_s:,.0f}"
    yield percent(forecast.first_waiting)
    yield "-" if forecast.later_images_per_s is None else f"{forecast.later_images_per_s:,.0f}"
    yield "-" if forecast.later_waiting is None else percent(forecast.later_waiting)
    yield seconds(forecast.wall_s)
    yield "-" if forecast.usd is None else f"{forecast.usd:.2g}"
