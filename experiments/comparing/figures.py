"""The arithmetic of a comparison: figures of a round, spreads over repeats, conclusions.

All functions are pure; `measured` reads the runs. To add a figure, add a field to `RoundFigures`, a line to
`FIGURES` and a line to `round_figures`.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from superdl.experiments.reporting.quantities import number
from superdl.super_wire.waits import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from superdl.experiments.comparing.measured import RoundMeasured, RunMeasured

__all__ = [
    "FIGURES",
    "Figure",
    "RoundFigures",
    "Spread",
    "are_apart",
    "conclusions",
    "mean_by_name",
    "probability_of_apart",
    "round_figures",
    "spread_of",
    "winner",
]

_BY_HOUR = {"training machine", "data machines"}
"""Costs shared by the runs on one machine, paid until the longest run ends."""
_STANDING = {"cache"}
"""Costs that are shared if the spec names the cache's nodes; otherwise each job pays its part."""


class Figure(NamedTuple):
    """A displayed figure of `RoundFigures`: title, unit, and whether more is better.

    ``whole``: it covers the whole run, warm-up included.
    """

    key: str
    title: str
    unit: str
    more_is_better: bool = False
    whole: bool = False


FIGURES = (
    Figure("images_per_s", "throughput", "images/s", more_is_better=True),
    Figure("step_ms", "a step", "ms"),
    Figure("wait_percent", "waiting for data", "% of training time"),
    Figure("cpu_ms_per_image", "CPU of all processes", "ms/image"),
    Figure("outside_ms_per_image", "thereof outside the trainer", "ms/image"),
    Figure("usd_per_epoch", "cost", "USD/epoch"),
    Figure("decodes_per_image", "decodes", "per image of the set", whole=True),
    Figure("cpu_s", "CPU in all", "s", whole=True),
    Figure("usd", "cost in all", "USD", whole=True),
    Figure("wall_s", "wall time", "s", whole=True),
    Figure("first_batch_s", "first batch after", "s", whole=True),
    Figure("accuracy", "best accuracy of validation", "", more_is_better=True, whole=True),
)


@dataclass(frozen=True, slots=True)
class RoundFigures:
    """A round's figures, defined in docs/runs.md; None if not measured.

    ``stall_percent_by_cause`` is the share of training time spent in stalled steps, by cause, and
    ``cpu_ms_by_group`` the CPU time per image, by group of processes.
    """

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
    stall_percent_by_cause: dict[str, float]
    cpu_ms_by_group: dict[str, float]


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over repeats."""

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
    """Return the spread of a figure over rounds; None if no round has it."""
    values = [value for figures in rounds if (value := getattr(figures, key)) is not None]
    return Spread(tuple(values)) if values else None


def mean_by_name(tables: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Average tables by name, largest mean first; a missing name counts as zero."""
    names = dict.fromkeys(name for table in tables for name in table)
    means = {name: math.fsum(table.get(name, 0.0) for table in tables) / len(tables) for name in names}
    return dict(sorted(means.items(), key=lambda item: -item[1]))


def round_figures(measured: RoundMeasured, warmup_epochs: int) -> RoundFigures:
    """Compute a round's figures; only whole-run figures include the warm-up."""
    epochs = [epoch for run in measured.runs for epoch in run.after(warmup_epochs)]
    train_passes = [epoch["train"] for epoch in epochs]
    wall_s = math.fsum(train_pass["wall_s"] for train_pass in train_passes)
    waited_s = math.fsum(train_pass["wait_s"] for train_pass in train_passes)
    stalls_s = _added_up(
        {wait_for(cause): total["wait_s"]}
        for train_pass in train_passes
        if train_pass["stalls"]
        for cause, total in train_pass["stalls"]["causes"].items()
    )
    images = sum(epoch_pass["samples"] for epoch in epochs for epoch_pass in _passes(epoch))
    used_s = _cpu_by_group(measured, warmup_epochs)
    firsts = [run.report["first_batch_s"] for run in measured.runs]
    steps = sum(train_pass["batches"] for train_pass in train_passes)
    validated = [
        epoch["val"]["accuracy"] for run in measured.runs for epoch in run.report["epochs"] if epoch["val"]
    ]
    per_image = {name: 1000 * used / images for name, used in used_s.items()} if images else {}
    return RoundFigures(
        images_per_s=_images_per_s(measured.runs, train_passes, warmup_epochs),
        step_ms=1000 * wall_s / steps if steps else None,
        wait_percent=100 * waited_s / wall_s if wall_s > 0 else 0.0,
        cpu_ms_per_image=math.fsum(per_image.values()) if per_image else None,
        outside_ms_per_image=sum(per_image.values()) - per_image.get("trainer", 0.0) if per_image else None,
        usd_per_epoch=_usd_per_epoch(measured.runs, warmup_epochs),
        decodes_per_image=_decodes_per_image(measured.runs),
        cpu_s=measured.cpu_s,
        usd=_usd(measured.runs),
        wall_s=measured.wall_s,
        first_batch_s=None if None in firsts else measured.services_start_s + max(firsts),
        accuracy=max(validated, default=None),
        stall_percent_by_cause={cause: 100 * s / wall_s for cause, s in stalls_s.items()}
        if wall_s > 0
        else {},
        cpu_ms_by_group=per_image,
    )


def _passes(epoch: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [epoch[split] for split in ("train", "val") if epoch[split] is not None]


def _added_up(tables: Iterable[Mapping[str, float]]) -> dict[str, float]:
    total: Counter[str] = Counter()
    for table in tables:
        total.update(table)
    return dict(total)


def _images_per_s(
    runs: Sequence[RunMeasured], trained: Sequence[Mapping[str, Any]], warmup_epochs: int
) -> float | None:
    """Return training images per second of the passes; for concurrent runs, until all had ended.

    Return None if that time is unknown, since it is taken from samples of the processes.
    """
    wall_s = math.fsum(train_pass["wall_s"] for train_pass in trained)
    # Rates of concurrent runs do not add up: the last is fast once the others end.
    if len(runs) > 1:
        begins = [begin for run in runs if (begin := run.end_s(warmup_epochs)) is not None]
        ends = [end for run in runs if (end := run.end_s(len(run.report["epochs"]))) is not None]
        wall_s = max(ends, default=0.0) - min(begins, default=math.inf)
    return sum(train_pass["samples"] for train_pass in trained) / wall_s if wall_s > 0 else None


def _cpu_by_group(measured: RoundMeasured, warmup_epochs: int) -> dict[str, float]:
    """Return CPU seconds by group after the warm-up; without one, they include the start.

    Empty if a run had several ranks. Shared services count from the end of the first run's warm-up.
    """
    # The phases of such a run cover rank 0 alone.
    if any(run.report["ranks"] > 1 for run in measured.runs):
        return {}
    used = [
        {name: group["cpu_s"] for name, group in phase["groups"].items()}
        for run in measured.runs
        for phase in run.phases
        if not warmup_epochs or (phase["epoch"] or 0) >= run.first_epoch + warmup_epochs
    ]
    if measured.services:
        # Other runs may still warm up: at worst this overstates the services.
        first_s = min(run.end_s(warmup_epochs) or -math.inf for run in measured.runs)
        earlier = [cpu_s for at_s, cpu_s in measured.services if warmup_epochs and at_s <= first_s]
        before, last = earlier[-1] if earlier else {}, measured.services[-1][1]
        used.append({name: max(0.0, cpu_s - before.get(name, 0.0)) for name, cpu_s in last.items()})
    return _added_up(used)


def _decodes_per_image(runs: Sequence[RunMeasured]) -> float | None:
    """Return decodes per image of the splits read, over all runs; None if not reported."""
    jobs = [
        epoch_pass["job"] for run in runs for epoch in run.report["epochs"] for epoch_pass in _passes(epoch)
    ]
    images = max(
        run.report["train_samples"]
        + (run.report["val_samples"] or 0) * any(epoch["val"] for epoch in run.report["epochs"])
        for run in runs
    )
    return None if not images or None in jobs else sum(job["samples_produced"] for job in jobs) / images


def _usd(runs: Sequence[RunMeasured]) -> float | None:
    """Return the cost of all runs; None if their training machine has no price."""
    paid: dict[str, list[float]] = {}
    shared = set(_BY_HOUR)
    for run in runs:
        if run.priced_bill is None:
            return None
        for line in run.priced_bill["lines"]:
            paid.setdefault(line["name"], []).append(line["usd"] or 0.0)
        if run.report["spec"]["cost"]["cache_node"] is not None:
            shared |= _STANDING
    return math.fsum(max(usd) if name in shared else math.fsum(usd) for name, usd in paid.items())


def _usd_per_epoch(runs: Sequence[RunMeasured], warmup_epochs: int) -> float | None:
    """Return the cost of an epoch; for concurrent runs, total cost over total epochs."""
    usd, epochs = _usd(runs), sum(len(run.report["epochs"]) for run in runs)
    if usd is None or not epochs:
        return None
    if len(runs) > 1:
        return usd / epochs
    first_epoch, costs = runs[0].first_epoch + warmup_epochs, (runs[0].priced_bill or {})["epochs"]
    counted = [cost["usd"] for cost in costs if cost["epoch"] >= first_epoch]
    return statistics.fmean(counted) if counted else None


# ------------------------------------------------------------------------------------------ in words


def are_apart(first: Spread, second: Spread) -> bool | None:
    """Check whether the ranges do not overlap; None if either has a single value."""
    if min(len(first.values), len(second.values)) == 1:
        return None
    return first.most < second.least or second.most < first.least


def probability_of_apart(first: int, second: int) -> float:
    """Return the probability that equal arms have disjoint ranges, given their repeats.

    Of all orders of the values, two have all values of one arm first.
    """
    return min(1.0, 2 / math.comb(first + second, first))


def conclusions(
    spreads: Mapping[str, Mapping[str, Spread | None]],
    warmup_epochs: int,
    *,
    failed: Mapping[str, int] | None = None,
    whole: frozenset[str] = frozenset(),
) -> tuple[tuple[str, str], ...]:
    """Return sentences on what the figures do not show, each after its subject.

    ``spreads`` is keyed by figure and arm, ``failed`` is the number of failed rounds by arm, ``whole`` holds
    the keys of figures that include the warm-up.
    """
    points = []
    repeats: dict[str, int] = {}
    for by_arm in spreads.values():
        for name, spread in by_arm.items():
            repeats[name] = max(repeats.get(name, 0), len(spread.values) if spread else 0)
    repeats = {name: times for name, times in repeats.items() if times}
    if len(repeats) > 1 and not any(spreads["usd"].values()):
        points.append(("Cost:", "not compared, because cost.machine names no machine of the price table."))
    titles = [figure.title for figure in FIGURES if figure.key in whole and any(spreads[figure.key].values())]
    points.append(("Warm-up:", _about_warmup(warmup_epochs, ", ".join(titles))))
    if len(repeats) > 1:
        points.append(("Chance:", _about_chance(repeats)))
    lost = ", ".join(f"{rounds} of {name}" for name, rounds in (failed or {}).items())
    return (*points, ("Failed:", f"rounds that are in no figure: {lost}.")) if lost else tuple(points)


def winner(figure: Figure, spreads: Mapping[str, Spread | None]) -> tuple[str, float | None] | None:
    """Return the arm with the best median, and how many times worse the next is, if finite.

    None if its range overlaps another's, or the medians are equal in three digits.
    """
    measured = {name: spread for name, spread in spreads.items() if spread is not None}
    ranked = sorted(measured, key=lambda name: measured[name].median, reverse=figure.more_is_better)
    if any(are_apart(measured[ranked[0]], measured[other]) is False for other in ranked[1:]):
        return None
    least, most = sorted(measured[name].median for name in ranked[:2]) if ranked[1:] else (0.0, 0.0)
    factor = most / least if least else None
    return None if not most or number(factor) == number(1.0) else (ranked[0], factor)


def _about_warmup(epochs: int, titles: str) -> str:
    if not epochs:
        return "no epoch is left out, so every figure includes the cold start."
    which = "the first epoch" if epochs == 1 else f"the first {epochs} epochs"
    return f"{which} of each run counts only in figures of the whole run{': ' * bool(titles)}{titles}."


def _about_chance(repeats: Mapping[str, int]) -> str:
    """Describe the effect of chance on the two arms most exposed to it, by their repeats."""
    once = [name for name, times in repeats.items() if times == 1]
    if once:
        return f"{', '.join(once)} ran once, so the spread is unknown: repeat it (--repeats 3)."
    first, *others = repeats.values()
    probability, second = max((probability_of_apart(first, other), other) for other in others)
    return (
        f"where two arms are alike, the ranges of {first} and {second} repeats lie apart in one figure of "
        f"{round(1 / probability)} all the same."
    )
