"""Reports of runs that did not take place."""

from pathlib import Path

from superdl.experiments.comparing.figures import RoundMeasured
from superdl.experiments.reporting.run_files import RunFiles


def measured(*runs, **facts):
    """Return one repeat of an arm with these reports of runs."""
    return RoundMeasured(tuple(RunFiles(Path(), run) for run in runs), **facts)


def one_pass(
    *,
    samples=100,
    batches=4,
    accuracy=0.5,
    wall_s=2.0,
    wait_s=0.5,
    first_batch_s=0.25,
    produced=0,
    stalls=None,
):
    causes = {cause: {"wait_s": waited_s} for cause, waited_s in (stalls or {}).items()}
    times = {"wall_s": wall_s, "wait_s": wait_s, "first_batch_s": first_batch_s}
    job = None if produced is None else {"samples_produced": produced}
    counts = {"samples": samples, "batches": batches, "accuracy": accuracy}
    return {**counts, "job": job, "stalls": {"causes": causes}, **times}


def run_of(
    *passes, vals=None, phases=(), ends=None, images=(100, 50), first=0, bill=None, node=None, ranks=1
):
    return {
        "train_samples": images[0],
        "val_samples": images[1],
        "epochs": [
            {"epoch": first + at, "train": train, "val": vals[at] if vals else None}
            for at, train in enumerate(passes)
        ],
        "utilization": {
            "phases": [
                {
                    "epoch": None if epoch is None else first + epoch,
                    "wall_s": wall_s,
                    "groups": {name: {"cpu_s": cpu_s} for name, cpu_s in cpu.items()},
                }
                for epoch, wall_s, cpu in phases
            ]
            + [
                {"epoch": None if epoch < 0 else first + epoch, "groups": {}, "ended_at_s": end_s}
                for epoch, end_s in (ends or {}).items()
            ]
        },
        "first_batch_s": phases[0][1] + passes[0]["first_batch_s"] if phases else None,
        "bill": bill,
        "ranks": ranks,
        "spec": {"cost": {"cache_node": node}},
    }
