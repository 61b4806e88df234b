"""The arithmetic of a comparison: figures of a round, spreads over repeats, and the winner of a row."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from superdl.experiments.reporting.page import number, share, times
from superdl.super_wire.waits import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    Report = Mapping[str, Any]  # the content of a run's report.json


class Figure(NamedTuple):
    """How to display a field of `RoundFigures`: its title, its unit, and whether higher is better."""

    key: str
    title: str
    unit: str
    more_is_better: bool = False
    whole: bool = False  # it covers the whole run, warm-up included


# A new figure needs a line here, a field of RoundFigures and a line in round_figures.
FIGURES = (
    Figure("images_per_s", "throughput", "images/s", more_is_better=True),
    Figure("step_ms", "step time", "ms"),
    Figure("wait_percent", "waiting for data", "% of training time"),
    Figure("cpu_ms_per_image", "CPU of all processes", "ms/image"),
    Figure("outside_ms_per_image", "of which outside the trainer", "ms/image"),
    Figure("usd_per_epoch", "cost", "USD/epoch"),
    Figure("decodes_per_image", "decodes", "per image of the set", whole=True),
    Figure("cpu_s", "total CPU", "s", whole=True),
    Figure("usd", "total cost", "USD", whole=True),
    Figure("wall_s", "wall time", "s", whole=True),
    Figure("first_batch_s", "time to first batch", "s", whole=True),
    Figure("accuracy", "best validation accuracy", "", more_is_better=True, whole=True),
)


@dataclass(frozen=True, slots=True)
class RoundFigures:
    """The figures of a round, as defined in docs/runs.md. A figure that was not measured is None."""

    images_per_s: float | None
    step_ms: float | None
    wait_percent: float
    cpu_ms_per_image: float | None
    outside_ms_per_image: float | None
    usd_per_epoch: float | None
    decodes_per_image: float | None
    cpu_s: float | None
    usd: float | None
    wall_s: float | None
    first_batch_s: float | None
    accuracy: float | None
    stall_percent_by_cause: dict[str, float]  # the share of training time spent in stalled steps
    cpu_ms_by_group: dict[str, float]  # per image, by group of processes


@dataclass(frozen=True, slots=True)
class RoundMeasured:
    """One repeat of an arm. For runs made elsewhere, only the reports of its concurrent runs are set."""

    runs: tuple[Report, ...]
    # From the start of the first process until the last run has reported.
    wall_s: float | None = None
    # Of all processes that descend from it, as the system accounts for them.
    cpu_s: float | None = None
    # CPU seconds of the services shared by the runs, by group, and the seconds that these took to start.
    services_cpu_s: Mapping[str, float] = field(default_factory=dict)
    services_start_s: float = 0.0


def epochs_after(run: Report, warmup_epochs: int) -> list[Report]:
    """Return the epochs after a run's first ``warmup_epochs``."""
    return list(run["epochs"][warmup_epochs:])


def round_figures(measured: RoundMeasured, warmup_epochs: int) -> RoundFigures:
    """Compute the figures of a round. Only whole-run figures include the warm-up."""
    runs = measured.runs
    epochs = [epoch for run in runs for epoch in epochs_after(run, warmup_epochs)]
    passes = [epoch["train"] for epoch in epochs]
    wall_s, waited_s = (math.fsum(each[name] for each in passes) for name in ("wall_s", "wait_s"))
    stalls_s: Counter[str] = Counter()
    for train_pass in passes:
        for cause, total in (train_pass["stalls"] or {}).get("causes", {}).items():
            stalls_s[wait_for(cause)] += total["wait_s"]
    images = sum(each["samples"] for epoch in epochs for each in _passes(epoch))
    used_s = _cpu_by_group(measured, warmup_epochs) if images else {}
    per_image = {name: 1000 * used / images for name, used in used_s.items()}
    firsts = [run["first_batch_s"] for run in runs]
    validated = [epoch["val"]["accuracy"] for run in runs for epoch in run["epochs"] if epoch["val"]]
    return RoundFigures(
        images_per_s=_images_per_s(runs, passes, warmup_epochs),
        step_ms=times(share(wall_s, sum(each["batches"] for each in passes)), 1000),
        wait_percent=100 * (share(waited_s, wall_s) or 0.0),
        cpu_ms_per_image=math.fsum(per_image.values()) if per_image else None,
        outside_ms_per_image=sum(per_image.values()) - per_image.get("trainer", 0.0) if per_image else None,
        usd_per_epoch=_usd_per_epoch(runs, warmup_epochs),
        decodes_per_image=_decodes_per_image(runs),
        cpu_s=measured.cpu_s,
        usd=_usd(runs),
        wall_s=measured.wall_s,
        first_batch_s=None if None in firsts else measured.services_start_s + max(firsts),
        accuracy=max(validated, default=None),
        stall_percent_by_cause={cause: 100 * (share(s, wall_s) or 0.0) for cause, s in stalls_s.items()},
        cpu_ms_by_group=per_image,
    )


def _passes(epoch: Report) -> list[Report]:
    return [epoch[split] for split in ("train", "val") if epoch[split] is not None]


def _phases(run: Report) -> list[Report]:
    return list((run["utilization"] or {}).get("phases", ()))


def _end_s(run: Report, epochs: int) -> float | None:
    """Return the time when ``epochs`` epochs had ended or, for 0, when the start phase had."""
    epoch = run["epochs"][epochs - 1]["epoch"] if epochs else None
    ends = [phase.get("ended_at_s") for phase in _phases(run) if phase["epoch"] == epoch]
    return ends[-1] if ends else None


def _images_per_s(runs: Sequence[Report], trained: Sequence[Report], warmup_epochs: int) -> float | None:
    """Return training images per second, or None if the time of concurrent runs is unknown."""
    wall_s = math.fsum(train_pass["wall_s"] for train_pass in trained)
    # Rates of concurrent runs do not add up: the last is fast once the others end.
    if len(runs) > 1:
        begins = [begin for run in runs if (begin := _end_s(run, warmup_epochs)) is not None]
        ends = [end for run in runs if (end := _end_s(run, len(run["epochs"]))) is not None]
        wall_s = max(ends, default=0.0) - min(begins, default=math.inf)
    return sum(train_pass["samples"] for train_pass in trained) / wall_s if wall_s > 0 else None


def _cpu_by_group(measured: RoundMeasured, warmup_epochs: int) -> dict[str, float]:
    """Return CPU seconds by group after the warm-up, or nothing if they are not known."""
    # The phases of such a run cover rank 0 alone.
    if any(run["ranks"] > 1 for run in measured.runs):
        return {}
    # The CPU of shared services is known only for the whole round.
    if warmup_epochs and measured.services_cpu_s:
        return {}
    used = Counter(measured.services_cpu_s)
    for run in measured.runs:
        warm = {epoch["epoch"] for epoch in epochs_after(run, warmup_epochs)}
        for phase in _phases(run):
            # Without a warm-up, the start counts too.
            if not warmup_epochs or phase["epoch"] in warm:
                used.update({name: group["cpu_s"] for name, group in phase["groups"].items()})
    return dict(used)


def _decodes_per_image(runs: Sequence[Report]) -> float | None:
    """Return decodes per image of the splits read, over all runs, or None if not reported."""
    jobs = [each["job"] for run in runs for epoch in run["epochs"] for each in _passes(epoch)]
    images = max(
        run["train_samples"] + (run["val_samples"] or 0) * any(epoch["val"] for epoch in run["epochs"])
        for run in runs
    )
    return None if not images or None in jobs else sum(job["samples_produced"] for job in jobs) / images


def _usd(runs: Sequence[Report]) -> float | None:
    """Return the cost of all runs, or None if their training machine has no price."""
    paid: dict[str, list[float]] = {}
    # Paid once by concurrent runs, until the longest ends; a cache, if the spec names its nodes.
    shared = {"training machine", "data machines"}
    for run in runs:
        lines = (run["bill"] or {}).get("lines", ())
        if {line["name"]: line["usd"] for line in lines}.get("training machine") is None:
            return None
        for line in lines:
            paid.setdefault(line["name"], []).append(line["usd"] or 0.0)
        if run["spec"]["cost"]["cache_node"] is not None:
            shared.add("cache")
    return math.fsum(max(usd) if name in shared else math.fsum(usd) for name, usd in paid.items())


def _usd_per_epoch(runs: Sequence[Report], warmup_epochs: int) -> float | None:
    """Return the cost of an epoch. For concurrent runs, divide the total cost by all their epochs."""
    usd, epochs = _usd(runs), sum(len(run["epochs"]) for run in runs)
    if usd is None or not epochs:
        return None
    if len(runs) > 1:
        return usd / epochs
    counted = [cost["usd"] for cost in runs[0]["bill"]["epochs"][warmup_epochs:]]
    return statistics.fmean(counted) if counted else None


# ------------------------------------------------------------------------------------- over repeats


@dataclass(frozen=True, slots=True)
class Spread:
    """The values of a figure over all repeats."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median."""
        return statistics.median(self.values)

    @property
    def least(self) -> float:
        """The smallest value."""
        return min(self.values)

    @property
    def most(self) -> float:
        """The largest value."""
        return max(self.values)


def spread_of(rounds: Iterable[RoundFigures], key: str) -> Spread | None:
    """Return the spread of a figure over rounds, or None if no round has it."""
    values = [value for figures in rounds if (value := getattr(figures, key)) is not None]
    return Spread(tuple(values)) if values else None


def mean_by_name(tables: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Average tables by name, with the largest mean first. A missing name counts as zero."""
    names = dict.fromkeys(name for table in tables for name in table)
    means = {name: math.fsum(table.get(name, 0.0) for table in tables) / len(tables) for name in names}
    return dict(sorted(means.items(), key=lambda item: -item[1]))


def winner(figure: Figure, spreads: Mapping[str, Spread | None]) -> tuple[str, float | None] | None:
    """Return the arm with the best median, and how many times worse the next one is, if finite.

    Return None if its range overlaps another, or if the medians are equal to three digits.
    """
    measured = {name: spread for name, spread in spreads.items() if spread is not None}
    ranked = sorted(measured, key=lambda name: measured[name].median, reverse=figure.more_is_better)
    if any(_overlap(measured[ranked[0]], measured[other]) for other in ranked[1:]):
        return None
    least, most = sorted(measured[name].median for name in ranked[:2]) if ranked[1:] else (0.0, 0.0)
    factor = most / least if least else None
    return None if not most or number(factor) == number(1.0) else (ranked[0], factor)


def _overlap(first: Spread, second: Spread) -> bool:
    # A single value has no range.
    if min(len(first.values), len(second.values)) == 1:
        return False
    return first.most >= second.least and second.most >= first.least
