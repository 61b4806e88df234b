"""Reads what a comparison needs of a run: its report and its samples of the processes, or a prediction of it.

A prediction by ``superdl simulate --output FILE`` says of itself that it is one, and every report marks it.
What follows from all that is left to `figures`.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

__all__ = [
    "BillMeasured",
    "CpuSample",
    "PassMeasured",
    "PhaseMeasured",
    "RoundMeasured",
    "RunMeasured",
    "read_measured_run",
    "read_prediction",
]

_MACHINE = "training machine"
_STANDING = frozenset({"cache"})
"""By the hour where the spec names the cache's nodes, else each job's share of them."""

CpuSample = tuple[float, "dict[str, float]"]
"""A Unix timestamp, and the CPU seconds by then of each group of processes."""


@dataclass(frozen=True, slots=True)
class PassMeasured:
    """A pass over one split.

    ``produced`` are samples fetched and decoded for it, None where nobody told; ``stalls_s`` the seconds
    waited in steps that stalled, by cause.
    """

    epoch: int
    split: str
    samples: int
    wall_s: float
    wait_s: float
    first_batch_s: float
    produced: int | None
    accuracy: float | None = None
    stalls_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PhaseMeasured:
    """What the processes of a run used in its start (no epoch) or in a pass: CPU seconds by group."""

    epoch: int | None
    split: str
    wall_s: float
    cpu_s: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class BillMeasured:
    """What a run cost in US dollars: in all, by epoch, and by what is paid for.

    ``by_hour`` are the lines that runs on one machine have in common, paid for as long as the longest goes.
    """

    usd: float
    by_epoch: Mapping[int, float]
    lines: Mapping[str, float]
    by_hour: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class RunMeasured:
    """One run. ``epoch_ends_at_s`` are timestamps by epoch, that of the start by -1.

    Epochs are counted from the first that it did, so that a run which went on from another's checkpoint has
    its warm-up as any other; ``first_epoch`` is what the run itself calls that one.

    ``passes`` are over all its ``ranks``, ``phases`` of rank 0 and what it started.
    """

    name: str
    status: str
    train_samples: int
    val_samples: int
    passes: tuple[PassMeasured, ...]
    phases: tuple[PhaseMeasured, ...]
    epoch_ends_at_s: Mapping[int, float] = field(default_factory=dict)
    ranks: int = 1
    first_epoch: int = 0
    reason: str | None = None
    wall_s: float | None = None
    bill: BillMeasured | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    simulated: bool = False

    @property
    def used_another_coordinator(self) -> bool:
        """Whether its functions and cache were not its own: then its samples tell nothing of them."""
        return str(self.facts.get("executor")).startswith("as the coordinator")


@dataclass(frozen=True, slots=True)
class RoundMeasured:
    """One go of an arm: its runs, which went on at once.

    ``wall_s`` is from the start of the first process until the last run has ended, ``cpu_s`` the CPU time of
    all processes that came of it, as the system accounts for them; ``services`` are samples of what the runs
    shared, which took ``services_start_s`` to start. All of these
    are absent for runs that were found, not made.
    """

    arm: str
    repeat: int
    runs: tuple[RunMeasured, ...]
    wall_s: float | None = None
    cpu_s: float | None = None
    services: tuple[CpuSample, ...] = ()
    services_start_s: float = 0.0


def read_measured_run(directory: Path) -> RunMeasured:
    """Read the run that has left ``directory``.

    Raises:
        ConfigError: there is no report of ``superdl run`` in it, or not one of this version's.

    """
    path = directory / "report.json"
    if not path.exists():
        raise ConfigError(f"{directory} holds no report.json, so no run has ended there")
    with _refused(path, "a report as this version writes it"):
        report = json.loads(path.read_text(encoding="utf-8"))
        return _run(report, _epoch_ends(directory / "utilization.jsonl"))


def read_prediction(path: Path) -> RunMeasured:
    """Read the training job of one prediction.

    Raises:
        ConfigError: the file is no prediction, or one of several points or training jobs.

    """
    with _refused(path, "what superdl simulate --output writes"):
        return _predicted(path, json.loads(path.read_text(encoding="utf-8")))


@contextlib.contextmanager
def _refused(path: Path, expected: str) -> Iterator[None]:
    """Name the file in errors that its content raises."""
    try:
        yield
    except ConfigError:
        raise
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path} is not {expected}: {error!r}") from error


def _run(report: Mapping[str, Any], ends: dict[int, float]) -> RunMeasured:
    first = int(report["epochs"][0]["epoch"]) if report["epochs"] else 0
    passes = [
        _pass(epoch["epoch"] - first, split, epoch[split])
        for epoch in report["epochs"]
        for split in ("train", "val")
        if epoch[split] is not None
    ]
    utilization = report["utilization"]
    phases = [] if utilization is None else [_phase(phase, first) for phase in utilization["phases"]]
    return RunMeasured(
        name=str(report["name"]),
        status=str(report["status"]),
        reason=report["reason"],
        train_samples=int(report["train_samples"]),
        val_samples=int(report["val_samples"] or 0),
        passes=tuple(passes),
        phases=tuple(phases),
        epoch_ends_at_s={epoch if epoch < 0 else epoch - first: at_s for epoch, at_s in ends.items()},
        first_epoch=first,
        ranks=int(report.get("ranks") or 1),
        wall_s=float(report["wall_s"]),
        bill=_bill(report, first),
        facts=report,
    )


def _pass(epoch: int, split: str, figures: Mapping[str, Any]) -> PassMeasured:
    job, stalls = figures["job"], figures.get("stalls") or {"causes": {}}
    return PassMeasured(
        epoch=epoch,
        split=split,
        samples=int(figures["samples"]),
        wall_s=float(figures["wall_s"]),
        wait_s=float(figures["wait_s"]),
        first_batch_s=float(figures["first_batch_s"]),
        produced=None if job is None else int(job["samples_produced"]),
        accuracy=figures["accuracy"],
        stalls_s={cause: float(total["wait_s"]) for cause, total in stalls["causes"].items()},
    )


def _bill(report: Mapping[str, Any], first: int) -> BillMeasured | None:
    """The run's bill; None where the training machine has no price in it, since the most would be missing."""
    bill = report["bill"]
    lines = {} if bill is None else {line["name"]: line["usd"] for line in bill["lines"]}
    if lines.get(_MACHINE) is None:
        return None
    standing = _STANDING if report["spec"]["cost"]["cache_node"] is not None else frozenset()
    return BillMeasured(
        usd=float(bill["usd"]),
        by_epoch={int(one["epoch"]) - first: float(one["usd"]) for one in bill["epochs"]},
        lines={name: float(usd) for name, usd in lines.items() if usd is not None},
        by_hour=frozenset({_MACHINE, "data machines"}) | standing,
    )


def _phase(phase: Mapping[str, Any], first: int) -> PhaseMeasured:
    used = {name: float(group["cpu_s"]) for name, group in phase["groups"].items()}
    epoch = None if phase["epoch"] is None else int(phase["epoch"]) - first
    return PhaseMeasured(epoch, phase["split"], float(phase["wall_s"]), used)


def _epoch_ends(path: Path) -> dict[int, float]:
    """When the start and each epoch ended: the last sample of each, which is taken on the border."""
    ends: dict[int, float] = {}
    if not path.is_file():
        return ends
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["epoch"] is not None or row["split"] == "start":
            epoch = -1 if row["epoch"] is None else int(row["epoch"])
            ends[epoch] = max(ends.get(epoch, 0.0), float(row["at_s"]))
    return ends


def _predicted(path: Path, prediction: Mapping[str, Any]) -> RunMeasured:
    if prediction["simulated"] is not True or len(prediction["rows"]) != 1:
        raise ConfigError(f"{path} is no prediction of one point: simulate without a sweep")
    jobs = {job["name"]: job for job in prediction["spec"]["jobs"]}
    training = [name for name, job in jobs.items() if job["follows"] is None]
    if len(training) != 1 or jobs[training[0]]["count"] != 1:
        raise ConfigError(f"{path} predicts {', '.join(training)} together: compare one training job")
    (row,) = prediction["rows"]
    (job,) = (job for job in row["jobs"] if job["name"] == training[0])
    passes = tuple(
        PassMeasured(
            epoch=int(one["epoch"]),
            split="train",
            samples=int(one["samples"]),
            wall_s=float(one["wall_s"]),
            wait_s=float(one["wait_s"]),
            first_batch_s=float(one["first_batch_s"]),
            produced=None,
        )
        for one in job["passes"]
    )
    samples = {data["name"]: int(data["samples"]) for data in prediction["spec"]["datasets"]}
    return RunMeasured(
        name=str(prediction["name"]),
        status="finished",
        train_samples=samples[jobs[training[0]]["dataset"]],
        val_samples=0,
        passes=passes,
        phases=(),
        wall_s=float(row["virtual_s"]),
        simulated=True,
    )
