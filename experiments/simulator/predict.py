"""Run a spec in the simulated world, and show throughput, waiting, functions and cost as simulated."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, fields, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

from superdl.experiments.console import print_rows, say
from superdl.experiments.simulator.executor_model import Work
from superdl.experiments.simulator.spec import build_world_model
from superdl.experiments.simulator.world import World

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from superdl.experiments.simulator.spec import SimulationSpec
    from superdl.experiments.simulator.trainer_model import TrainerModel

_HOUR_S = 3600.0
_FORMAT = 1
_JOBS_SHOWN = 12
_SMALL_USD = 0.1


@dataclass(frozen=True, slots=True)
class JobPrediction:
    """The prediction for a job. ``stall_share`` is the share of time spent waiting after the first batch."""

    name: str
    samples: int
    epochs: float
    images_per_s: float
    stall_share: float
    hit_rate: float
    first_batch_s: float
    invocations: int
    usd: float


@dataclass(kw_only=True)
class Prediction(Work):
    """All predictions for one run. Dollars are totals."""

    swept: dict[str, float]
    virtual_s: float
    images_per_s: float
    stall_share: float
    hit_rate: float
    first_batch_s: float
    functions_mean: float  # in use at a time
    functions_peak: int
    samples_read: int
    epochs: float
    usd_functions: float
    usd_source: float
    usd_store: float
    usd_trainers: float
    usd_cache: float
    usd: float
    usd_per_epoch: float
    usd_per_job: float
    simulated_in_s: float
    core_cpu_s: float  # of this machine
    core_longest_s: float
    jobs: tuple[JobPrediction, ...]
    simulated: bool = True


def predict(spec: SimulationSpec, swept: Mapping[str, float] | None = None) -> Prediction:
    """Simulate ``spec``. ``swept`` contains the values of a sweep, which are shown in the row."""
    began_s = time.perf_counter()
    world = World(build_world_model(spec), log=False).run()
    usage, prices, ended_s = world.executors[0].usage, spec.prices, world.ended_s
    jobs = [_job(world, trainers, prices.trainer_hour) for trainers in world.trainers.values()]
    read, epochs = sum(job.samples for job in jobs), sum(job.epochs for job in jobs)
    costs: dict[str, Any] = {
        "usd_functions": usage.invocations * prices.invocation + usage.gb_s * prices.gb_s,
        "usd_source": usage.source_requests * prices.source_request,
        "usd_store": usage.store_gets * prices.source_request + usage.store_puts * prices.store_put,
        "usd_cache": prices.cache_gb_hour * spec.cache.budget_gb * ended_s / _HOUR_S,
    }
    shared_usd, trainers_usd = sum(costs.values()), sum(job.usd for job in jobs)
    usd = shared_usd + trainers_usd
    begun = [job for job in jobs if job.samples]
    return Prediction(
        swept=dict(swept or {}),
        virtual_s=ended_s,
        images_per_s=_share(read, ended_s),
        stall_share=_mean([job.stall_share for job in begun]),
        hit_rate=_share(sum(job.hit_rate * job.samples for job in jobs), read),
        first_batch_s=_mean([job.first_batch_s for job in begun]),
        functions_mean=_share(usage.function_s, ended_s),
        functions_peak=usage.peak,
        **{entry.name: getattr(usage, entry.name) for entry in fields(Work)},
        samples_read=read,
        epochs=epochs,
        **costs,
        usd_trainers=trainers_usd,
        usd=usd,
        usd_per_epoch=_share(usd, epochs),
        usd_per_job=usd / max(len(begun), 1),
        simulated_in_s=time.perf_counter() - began_s,
        core_cpu_s=world.core_cpu_s,
        core_longest_s=world.core_longest_s,
        # Jobs share the common costs by the samples that they read.
        jobs=tuple(replace(job, usd=job.usd + shared_usd * _share(job.samples, read)) for job in jobs),
    )


def _job(world: World, trainers: list[TrainerModel], usd_per_hour: float) -> JobPrediction:
    """Summarise a job by its slowest rank. Dollars cover trainers only."""
    script, ended_s = trainers[0].script, world.ended_s
    start_s = min(script.starts_s, ended_s)
    end_s = max(
        (trainer.passes[-1].ended_s or ended_s for trainer in trainers if trainer.passes), default=start_s
    )
    passes = [epoch_pass for trainer in trainers for epoch_pass in trainer.passes]
    samples = sum(epoch_pass.samples for epoch_pass in passes)
    waited_s = max(
        sum(epoch_pass.wait_s for epoch_pass in trainer.passes) + trainer.waits_s for trainer in trainers
    )
    first_s = max((trainer.passes[0].first_wait_s for trainer in trainers if trainer.passes), default=0.0)
    return JobPrediction(
        name=script.name,
        samples=samples,
        epochs=samples / script.plan.samples_per_epoch,
        images_per_s=_share(samples, end_s - start_s),
        stall_share=_share(waited_s - first_s, end_s - start_s - first_s),
        hit_rate=_share(sum(epoch_pass.hits for epoch_pass in passes), samples),
        first_batch_s=first_s,
        invocations=world.requests[script.name],
        usd=usd_per_hour * (end_s - start_s) * len(trainers) / _HOUR_S,
    )


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0


def _mean(values: list[float]) -> float:
    return fmean(values) if values else 0.0


def predictions_mapping(spec: SimulationSpec, predictions: Sequence[Prediction]) -> dict[str, Any]:
    """Return all predictions as plain values for JSON."""
    return {
        "format": _FORMAT,
        "simulated": True,
        "name": spec.name,
        "spec": spec.to_mapping(),
        "rows": [asdict(prediction) for prediction in predictions],
    }


def print_predictions(spec: SimulationSpec, predictions: Sequence[Prediction], console: Console) -> None:
    """Print a row for each point of the sweep. Without a sweep, also print the jobs if there are few."""
    _print(f"{spec.name}, simulated", [_cells(row) for row in predictions], console)
    jobs = predictions[0].jobs
    if len(predictions) == 1 and len(jobs) <= _JOBS_SHOWN:
        _print(f"{spec.name}, jobs, simulated", [_job_cells(job) for job in jobs], console)
    for row in predictions:
        say(
            console,
            f"simulated {row.virtual_s:,.1f} virtual s in {row.simulated_in_s:.1f} s: {row.samples_read:,} "
            f"samples read, {row.samples_produced:,} produced and {row.samples_restored:,} restored by "
            f"{row.invocations:,} invocations; functions ${_money(row.usd_functions)}, GETs "
            f"${_money(row.usd_source)}, the store's GETs and PUTs ${_money(row.usd_store)}, trainers "
            f"${_money(row.usd_trainers)}, cache ${_money(row.usd_cache)}; the coordinator's core "
            f"took {row.core_cpu_s:.3g} s of this machine's CPU, "
            f"{_share(row.core_cpu_s, row.virtual_s):.2g} of a core, "
            f"{1e3 * row.core_longest_s:.3g} ms at most for one step",
        )


def _print(title: str, rows: Sequence[Mapping[str, str]], console: Console) -> None:
    print_rows(console, rows[0], [row.values() for row in rows], title=title)


def _cells(row: Prediction) -> dict[str, str]:
    return {
        "\nrow": "simulated",
        **{f"\n{key}": f"{value:g}" for key, value in row.swept.items()},
        "images\n/s": f"{row.images_per_s:,.0f}",
        "stall\n%": f"{100 * row.stall_share:.1f}",
        "hits\n%": f"{100 * row.hit_rate:.1f}",
        "first\n(s)": f"{row.first_batch_s:.2f}",
        "functions\nmean": f"{row.functions_mean:,.1f}",
        "\npeak": f"{row.functions_peak:,}",
        "decoded\n/read": f"{row.samples_produced / max(row.samples_read, 1):.3f}",
        "$ per\nepoch": _money(row.usd_per_epoch),
        "$ per\njob": _money(row.usd_per_job),
    }


def _job_cells(job: JobPrediction) -> dict[str, str]:
    return {
        "job, simulated": job.name,
        "epochs": f"{job.epochs:.3g}",
        "images/s": f"{job.images_per_s:,.0f}",
        "stall %": f"{100 * job.stall_share:.1f}",
        "hits %": f"{100 * job.hit_rate:.1f}",
        "first (s)": f"{job.first_batch_s:.2f}",
        "$": _money(job.usd),
    }


def _money(usd: float) -> str:
    return f"{usd:,.2f}" if usd >= _SMALL_USD or not usd else f"{usd:.2g}"
