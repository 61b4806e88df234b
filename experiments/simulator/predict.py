"""Runs a spec in the simulated world and shows what came of it: throughput, waiting, functions, dollars.

Every row of a table and of the JSON says that it was simulated.
"""

from __future__ import annotations

import itertools
import resource
import sys
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

from superdl.experiments.simulator.world import World
from superdl.experiments.simulator.world_model import build_world_model

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from superdl.experiments.simulator.spec import SimulationSpec
    from superdl.experiments.simulator.trainer_model import PassFigures, TrainerModel

__all__ = [
    "JobPrediction",
    "PassPrediction",
    "Prediction",
    "predict",
    "predictions_mapping",
    "print_predictions",
]

_HOUR_S = 3600.0
_KIB = 1024
_FORMAT = 1
_JOBS_SHOWN = 12
_SMALL_USD = 0.1
_WIDE = 110


@dataclass(frozen=True, slots=True)
class PassPrediction:
    """One pass of one job; times are those of its slowest rank, counts are sums over ranks."""

    epoch: int
    samples: int
    batches: int
    hits: int
    wall_s: float
    wait_s: float
    first_batch_s: float


@dataclass(frozen=True, slots=True)
class JobPrediction:
    """One job. ``stall_share`` is waiting after the first batch, as a share of the time since then."""

    name: str
    samples: int
    epochs: float
    images_per_s: float
    batches_per_s: float
    stall_share: float
    hit_rate: float
    first_batch_s: float
    invocations: int
    usd: float
    passes: tuple[PassPrediction, ...]


@dataclass(frozen=True, slots=True)
class Prediction:
    """All that is predicted of one run. Dollars are sums; ``functions`` are those in use at a time."""

    swept: dict[str, float]
    virtual_s: float
    images_per_s: float
    batches_per_s_per_job: float
    stall_share: float
    hit_rate: float
    first_batch_s: float
    first_batch_max_s: float
    functions_mean: float
    functions_peak: int
    invocations: int
    cold_starts: int
    throttled: int
    gb_s: float
    source_requests: int
    samples_read: int
    samples_produced: int
    epochs: float
    usd_functions: float
    usd_source: float
    usd_trainers: float
    usd_cache: float
    usd: float
    usd_per_epoch: float
    usd_per_job: float
    simulated_in_s: float
    events: int
    memory_mib: int
    jobs: tuple[JobPrediction, ...]
    simulated: bool = True


def predict(
    spec: SimulationSpec, swept: Mapping[str, float] | None = None, *, checked: bool = False
) -> Prediction:
    """Simulate ``spec``.

    Args:
        spec: what is simulated.
        swept: what a sweep has set, to be shown with the row.
        checked: check every promise after every event, which takes long.

    Raises:
        InvariantError: a promise of the core is broken.
    """
    began_s = time.perf_counter()
    world = World(build_world_model(spec), checked=checked, log=False).run()
    return _predicted(world, spec, swept or {}, time.perf_counter() - began_s)


def _predicted(
    world: World, spec: SimulationSpec, swept: Mapping[str, float], simulated_in_s: float
) -> Prediction:
    """Read the figures off a world that has run."""
    usage, prices, hours = world.executors[0].usage, spec.prices, world.ended_s / _HOUR_S
    ends_s = {name: _end_s(world, trainers) for name, trainers in world.trainers.items()}
    trainer_hours = {
        name: (ends_s[name] - _start_s(world, trainers)) * len(trainers) / _HOUR_S
        for name, trainers in world.trainers.items()
    }
    functions_usd = usage.invocations * prices.invocation + usage.gb_s * prices.gb_s
    source_usd = usage.source_requests * prices.source_request
    cache_usd = prices.cache_gb_hour * spec.cache.budget_gb * hours
    trainers_usd = prices.trainer_hour * sum(trainer_hours.values())
    read = {name: _samples(trainers) for name, trainers in world.trainers.items()}
    total_read = sum(read.values())
    shared_usd = functions_usd + source_usd + cache_usd
    jobs = tuple(
        _job(
            world,
            trainers,
            ends_s[name],
            usd=prices.trainer_hour * trainer_hours[name] + shared_usd * read[name] / max(total_read, 1),
        )
        for name, trainers in world.trainers.items()
    )
    epochs = sum(job.epochs for job in jobs)
    usd = shared_usd + trainers_usd
    begun = [job for job in jobs if job.samples]
    return Prediction(
        swept=dict(swept),
        virtual_s=world.ended_s,
        images_per_s=total_read / world.ended_s if world.ended_s else 0.0,
        batches_per_s_per_job=_mean([job.batches_per_s for job in begun]),
        stall_share=_mean([job.stall_share for job in begun]),
        hit_rate=_share(sum(_hits(trainers) for trainers in world.trainers.values()), total_read),
        first_batch_s=_mean([job.first_batch_s for job in begun]),
        first_batch_max_s=max((job.first_batch_s for job in begun), default=0.0),
        functions_mean=usage.function_s / world.ended_s if world.ended_s else 0.0,
        functions_peak=usage.peak,
        invocations=usage.invocations,
        cold_starts=usage.cold_starts,
        throttled=usage.throttled,
        gb_s=usage.gb_s,
        source_requests=usage.source_requests,
        samples_read=total_read,
        samples_produced=usage.samples_produced,
        epochs=epochs,
        usd_functions=functions_usd,
        usd_source=source_usd,
        usd_trainers=trainers_usd,
        usd_cache=cache_usd,
        usd=usd,
        usd_per_epoch=usd / epochs if epochs else 0.0,
        usd_per_job=usd / max(len(begun), 1),
        simulated_in_s=simulated_in_s,
        events=world.events,
        memory_mib=_peak_memory_mib(),
        jobs=jobs,
    )


def _job(world: World, trainers: list[TrainerModel], end_s: float, *, usd: float) -> JobPrediction:
    script = trainers[0].script
    passes = tuple(
        _pass([trainer.passes[number] for trainer in trainers if number < len(trainer.passes)], world.ended_s)
        for number in range(max(len(trainer.passes) for trainer in trainers))
    )
    samples, batches = sum(one.samples for one in passes), sum(one.batches for one in passes) / len(trainers)
    waited_s = max(sum(one.wait_s for one in trainer.passes) + trainer.waits_s for trainer in trainers)
    firsts = [one for one in passes[:1] if one.batches]
    first_s = firsts[0].first_batch_s if firsts else 0.0
    wall_s = sum(one.wall_s for one in passes)
    return JobPrediction(
        name=script.name,
        samples=samples,
        epochs=samples / script.plan.samples_per_epoch,
        images_per_s=samples / wall_s if wall_s else 0.0,
        batches_per_s=batches / wall_s if wall_s else 0.0,
        stall_share=_share(waited_s - first_s, end_s - trainers[0].passes[0].began_s - first_s)
        if passes
        else 0.0,
        hit_rate=_share(_hits(trainers), samples),
        first_batch_s=first_s,
        invocations=world.asked[script.name],
        usd=usd,
        passes=passes,
    )


def _pass(ranks: list[PassFigures], now: float) -> PassPrediction:
    return PassPrediction(
        epoch=ranks[0].epoch,
        samples=sum(one.samples for one in ranks),
        batches=sum(one.batches for one in ranks),
        hits=sum(one.hits for one in ranks),
        wall_s=max((one.ended_s or now) for one in ranks) - min(one.began_s for one in ranks),
        wait_s=max(one.wait_s for one in ranks),
        first_batch_s=max(one.first_wait_s for one in ranks),
    )


def _start_s(world: World, trainers: list[TrainerModel]) -> float:
    return min(trainers[0].script.starts_s, world.ended_s)


def _end_s(world: World, trainers: list[TrainerModel]) -> float:
    """When a job ended, or when the run did."""
    begun = [trainer for trainer in trainers if trainer.passes]
    ends_s = [trainer.passes[-1].ended_s or world.ended_s for trainer in begun]
    return max(ends_s, default=_start_s(world, trainers))


def _samples(trainers: list[TrainerModel]) -> int:
    return sum(one.samples for trainer in trainers for one in trainer.passes)


def _hits(trainers: list[TrainerModel]) -> int:
    return sum(one.hits for trainer in trainers for one in trainer.passes)


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0


def _mean(values: list[float]) -> float:
    return float(np.mean(values)) if values else 0.0


def _peak_memory_mib() -> int:
    """The most memory that this process has had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak / (_KIB * _KIB if sys.platform == "darwin" else _KIB))


def predictions_mapping(spec: SimulationSpec, predictions: Sequence[Prediction]) -> dict[str, Any]:
    """Return all as plain values for JSON."""
    return {
        "format": _FORMAT,
        "simulated": True,
        "name": spec.name,
        "spec": spec.to_mapping(),
        "rows": [asdict(prediction) for prediction in predictions],
    }


def print_predictions(spec: SimulationSpec, predictions: Sequence[Prediction], console: Console) -> None:
    """Print a row for each point of the sweep, and the jobs where there is one point and few of them."""
    table = Table(title=f"{spec.name}, simulated", box=SIMPLE_HEAD, padding=0)
    swept = list(predictions[0].swept)
    table.add_column("\nrow")
    shown = [console.width >= _WIDE or heading not in _LEFT_OUT for heading in _cells(predictions[0])]
    for heading in (*(f"\n{key}" for key in swept), *itertools.compress(_cells(predictions[0]), shown)):
        table.add_column(heading, justify="right", overflow="fold")
    for prediction in predictions:
        cells = itertools.compress(_cells(prediction).values(), shown)
        table.add_row("simulated", *(f"{prediction.swept[key]:g}" for key in swept), *cells)
    console.print(table)
    if len(predictions) == 1:
        _print_jobs(predictions[0].jobs, console)
    for prediction in predictions:
        console.print(
            f"simulated {prediction.virtual_s:,.1f} virtual s in {prediction.simulated_in_s:.1f} s: "
            f"{prediction.events:,} events, {prediction.samples_read:,} samples read, "
            f"{prediction.samples_produced:,} produced; peak memory {prediction.memory_mib:,} MiB; "
            f"functions ${_money(prediction.usd_functions)}, GETs ${_money(prediction.usd_source)}, "
            f"trainers ${_money(prediction.usd_trainers)}, cache ${_money(prediction.usd_cache)}",
            highlight=False,
            soft_wrap=True,
        )


_LEFT_OUT = ("\npeak", "\ninvocations", "decoded\n/read", "\n$")
"""What a narrow terminal can do without."""


def _cells(row: Prediction) -> dict[str, str]:
    """A row of the table, by its headings."""
    return {
        "images\n/s": f"{row.images_per_s:,.0f}",
        "batches\n/s/job": f"{row.batches_per_s_per_job:.3g}",
        "stall\n%": f"{100 * row.stall_share:.1f}",
        "hits\n%": f"{100 * row.hit_rate:.1f}",
        "first\n(s)": f"{row.first_batch_s:.2f}",
        "functions\nmean": f"{row.functions_mean:,.1f}",
        "\npeak": f"{row.functions_peak:,}",
        "\ninvocations": f"{row.invocations:,}",
        "decoded\n/read": f"{row.samples_produced / max(row.samples_read, 1):.3f}",
        "$ per\nepoch": _money(row.usd_per_epoch),
        "$ per\njob": _money(row.usd_per_job),
        "\n$": _money(row.usd),
    }


def _print_jobs(jobs: Sequence[JobPrediction], console: Console) -> None:
    if len(jobs) > _JOBS_SHOWN:
        slow = sorted((job for job in jobs if job.samples), key=lambda job: -job.stall_share)[:3]
        worst = ", ".join(f"{job.name} {100 * job.stall_share:.1f}%" for job in slow)
        console.print(f"{len(jobs):,} jobs (all in --json); most stalled: {worst}", highlight=False)
        return
    table = Table(box=SIMPLE_HEAD, padding=0)
    table.add_column("job, simulated", overflow="fold")
    for heading in _job_cells(jobs[0]):
        table.add_column(heading, justify="right", overflow="fold")
    for job in jobs:
        table.add_row(job.name, *_job_cells(job).values())
    console.print(table)


def _job_cells(job: JobPrediction) -> dict[str, str]:
    return {
        "epochs": f"{job.epochs:.3g}",
        "images/s": f"{job.images_per_s:,.0f}",
        "batches/s": f"{job.batches_per_s:.3g}",
        "stall %": f"{100 * job.stall_share:.1f}",
        "hits %": f"{100 * job.hit_rate:.1f}",
        "first (s)": f"{job.first_batch_s:.2f}",
        "$": _money(job.usd),
    }


def _money(usd: float) -> str:
    return f"{usd:,.2f}" if usd >= _SMALL_USD or not usd else f"{usd:.2g}"
