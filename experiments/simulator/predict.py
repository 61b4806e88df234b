"""``superdl simulate``: predict throughput, time spent waiting and function usage from a spec."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, fields
from statistics import fmean
from typing import TYPE_CHECKING, Any

from superdl.experiments.console import print_rows, say
from superdl.experiments.simulator.executor_model import Work
from superdl.experiments.simulator.spec import build_world_model
from superdl.experiments.simulator.world import World

if TYPE_CHECKING:
    from rich.console import Console

    from superdl.experiments.simulator.spec import SimulationSpec
    from superdl.experiments.simulator.trainer_model import TrainerModel

_FORMAT = 2


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
    epochs_s: tuple[float, ...]  # durations of complete epochs


@dataclass(kw_only=True)
class Prediction(Work):
    """A simulation's results: means over its jobs, and the usage of its functions."""

    virtual_s: float
    images_per_s: float
    stall_share: float
    hit_rate: float
    first_batch_s: float
    functions_mean: float  # mean in use at a time
    samples_read: int
    core_cpu_s: float  # real CPU time, as is core_longest_s
    core_longest_s: float
    jobs: tuple[JobPrediction, ...]
    simulated_in_s: float
    simulated: bool = True


def predict(spec: SimulationSpec) -> Prediction:
    """Simulate ``spec``, and return the prediction."""
    began_s = time.perf_counter()
    world = World(build_world_model(spec)).run()
    usage, jobs = world.executors[0].usage, predicted_jobs(world)
    read, begun = sum(job.samples for job in jobs), [job for job in jobs if job.samples]
    return Prediction(
        virtual_s=world.now_s,
        images_per_s=_share(read, world.now_s),
        stall_share=fmean([job.stall_share for job in begun] or [0.0]),
        hit_rate=_share(sum(job.hit_rate * job.samples for job in jobs), read),
        first_batch_s=fmean([job.first_batch_s for job in begun] or [0.0]),
        functions_mean=_share(usage.gb_s / spec.functions.memory_gb, world.now_s),
        **{entry.name: getattr(usage, entry.name) for entry in fields(Work)},
        samples_read=read,
        core_cpu_s=world.core_cpu_s,
        core_longest_s=world.core_longest_s,
        jobs=jobs,
        simulated_in_s=time.perf_counter() - began_s,
    )


def predicted_jobs(world: World) -> tuple[JobPrediction, ...]:
    """Return the prediction for each job of a world that has run."""
    return tuple(_job(world, trainers) for trainers in world.trainers.values())


def _job(world: World, trainers: list[TrainerModel]) -> JobPrediction:
    """Summarise a job. Its times are those of its slowest rank."""
    script, ended_s = trainers[0].script, world.now_s
    start_s = min(script.starts_s, ended_s)
    begun = [trainer for trainer in trainers if trainer.passes]
    end_s = max((trainer.passes[-1].ended_s or ended_s for trainer in begun), default=start_s)
    first_s = max((trainer.passes[0].first_wait_s for trainer in begun), default=0.0)
    passes = [epoch_pass for trainer in trainers for epoch_pass in trainer.passes]
    samples = sum(epoch_pass.samples for epoch_pass in passes)
    waited_s = max(
        sum(epoch_pass.wait_s for epoch_pass in trainer.passes) + trainer.waits_s for trainer in trainers
    )
    return JobPrediction(
        name=script.name,
        samples=samples,
        epochs=samples / script.plan.samples_per_epoch,
        images_per_s=_share(samples, end_s - start_s),
        stall_share=_share(waited_s - first_s, end_s - start_s - first_s),
        hit_rate=_share(sum(epoch_pass.hits for epoch_pass in passes), samples),
        first_batch_s=first_s,
        epochs_s=tuple(
            max(epoch_pass.ended_s - epoch_pass.began_s for epoch_pass in ranks)
            for ranks in zip(*(trainer.passes for trainer in trainers), strict=False)
            if all(epoch_pass.ended_s for epoch_pass in ranks)
        ),
    )


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0


def prediction_mapping(spec: SimulationSpec, prediction: Prediction) -> dict[str, Any]:
    """Return a spec and its prediction as plain values for JSON."""
    return {"format": _FORMAT, "name": spec.name, "spec": asdict(spec), **asdict(prediction)}


def print_prediction(spec: SimulationSpec, prediction: Prediction, console: Console) -> None:
    """Print a prediction, and the cost of the simulation."""
    cells = {
        "images\n/s": f"{prediction.images_per_s:,.0f}",
        "stall\n%": f"{100 * prediction.stall_share:.1f}",
        "hits\n%": f"{100 * prediction.hit_rate:.1f}",
        "first\n(s)": f"{prediction.first_batch_s:.2f}",
        "functions\nmean": f"{prediction.functions_mean:,.1f}",
        "\npeak": f"{prediction.functions_peak:,}",
        "decoded\n/read": f"{prediction.samples_produced / max(prediction.samples_read, 1):.3f}",
    }
    print_rows(console, cells, [cells.values()], title=f"{spec.name}, simulated", text_columns=0)
    say(
        console,
        f"simulated {prediction.virtual_s:,.1f} virtual s in {prediction.simulated_in_s:.1f} s: "
        f"{prediction.samples_read:,} samples read, {prediction.samples_produced:,} produced and "
        f"{prediction.samples_restored:,} restored by {prediction.invocations:,} invocations "
        f"({prediction.gb_s:,.0f} GB-seconds, {prediction.source_requests:,} GETs); "
        f"the coordinator's core used {prediction.core_cpu_s:.3g} s of this machine's CPU, "
        f"{_share(prediction.core_cpu_s, prediction.virtual_s):.2g} of a core, "
        f"{1e3 * prediction.core_longest_s:.3g} ms at most for one step",
    )
