"""The arithmetic of a comparison: what one round of an arm comes to, how its repeats spread, and what these
figures mean in words and do not allow to be said. Pure.

Reading runs is left to `measured`. A further figure is a field of `RoundFigures`, a line of `FIGURES` and a
line of `round_figures`.
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
"""What runs on one machine have in common: it is paid for as long as the longest goes."""
_STANDING = {"cache"}
"""The same where the spec names the cache's nodes; else each job pays its share of them."""


class Figure(NamedTuple):
    """A figure that people see: its name in `RoundFigures`, its title and unit, and which way is better.

    ``whole``: it is of the whole run, warm-up included.
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
    """What one round of an arm comes to; None where it was not measured. docs/runs.md defines each.

    ``stall_percent_by_cause`` says why training time was spent waiting, for steps that stalled, and
    ``cpu_ms_by_group`` whose the CPU time of an image is.
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
        """The middle one."""
        return statistics.median(self.values)

    @property
    def least(self) -> float:
        """The smallest."""
        return min(self.values)

    @property
    def most(self) -> float:
        """The largest."""
        return max(self.values)


def spread_of(rounds: Iterable[RoundFigures], key: str) -> Spread | None:
    """How a figure spreads over rounds; None if no round has it."""
    values = [value for one in rounds if (value := getattr(one, key)) is not None]
    return Spread(tuple(values)) if values else None


def mean_by_name(tables: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of several tables by name, the largest first; what a table lacks is zero in it."""
    names = dict.fromkeys(name for table in tables for name in table)
    means = {name: math.fsum(table.get(name, 0.0) for table in tables) / len(tables) for name in names}
    return dict(sorted(means.items(), key=lambda item: -item[1]))


def round_figures(measured: RoundMeasured, warmup_epochs: int) -> RoundFigures:
    """Work one round out, leaving the first epochs of each run out but in figures of the whole run."""
    counted = [epoch for run in measured.runs for epoch in run.after(warmup_epochs)]
    trained = [epoch["train"] for epoch in counted]
    wall_s = math.fsum(one["wall_s"] for one in trained)
    waited_s = math.fsum(one["wait_s"] for one in trained)
    stalls_s = _added_up(
        {wait_for(cause): total["wait_s"]}
        for one in trained
        if one["stalls"]
        for cause, total in one["stalls"]["causes"].items()
    )
    images = sum(one["samples"] for epoch in counted for one in _passes(epoch))
    used_s = _cpu_by_group(measured, warmup_epochs)
    firsts = [run.report["first_batch_s"] for run in measured.runs]
    steps = sum(one["batches"] for one in trained)
    validated = [
        one["val"]["accuracy"] for run in measured.runs for one in run.report["epochs"] if one["val"]
    ]
    per_image = {name: 1000 * used / images for name, used in used_s.items()} if images else {}
    return RoundFigures(
        images_per_s=_images_per_s(measured.runs, trained, warmup_epochs),
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
    """Training images over the time of their passes; of runs at once, over the time until all had ended.
    None: nobody knows that time, since it is taken from samples of the processes.

    Rates of such runs are not added up: the last one is fast when the others have gone.
    """
    wall_s = math.fsum(one["wall_s"] for one in trained)
    if len(runs) > 1:
        begins = [begin for run in runs if (begin := run.end_s(warmup_epochs)) is not None]
        ends = [end for run in runs if (end := run.end_s(len(run.report["epochs"]))) is not None]
        wall_s = max(ends, default=0.0) - min(begins, default=math.inf)
    return sum(one["samples"] for one in trained) / wall_s if wall_s > 0 else None


def _cpu_by_group(measured: RoundMeasured, warmup_epochs: int) -> dict[str, float]:
    """CPU seconds after the warm-up, by group; without a warm-up the start of the runs is in it.

    Empty where a run had several ranks: its phases are of rank 0 alone. Of what runs share, all counts that
    it did after the first of them was through its warm-up: in doubt against them.
    """
    if any(run.report["ranks"] > 1 for run in measured.runs):
        return {}
    used = [
        {name: group["cpu_s"] for name, group in phase["groups"].items()}
        for run in measured.runs
        for phase in run.phases
        if not warmup_epochs or (phase["epoch"] or 0) >= run.first_epoch + warmup_epochs
    ]
    if measured.services:
        first_s = min(run.end_s(warmup_epochs) or -math.inf for run in measured.runs)
        earlier = [cpu_s for at_s, cpu_s in measured.services if warmup_epochs and at_s <= first_s]
        before, last = earlier[-1] if earlier else {}, measured.services[-1][1]
        used.append({name: max(0.0, cpu_s - before.get(name, 0.0)) for name, cpu_s in last.items()})
    return _added_up(used)


def _decodes_per_image(runs: Sequence[RunMeasured]) -> float | None:
    """How often an image of the splits that were read was decoded, for all runs together; None: not told."""
    jobs = [one["job"] for run in runs for epoch in run.report["epochs"] for one in _passes(epoch)]
    images = max(
        run.report["train_samples"]
        + (run.report["val_samples"] or 0) * any(one["val"] for one in run.report["epochs"])
        for run in runs
    )
    return None if not images or None in jobs else sum(job["samples_produced"] for job in jobs) / images


def _usd(runs: Sequence[RunMeasured]) -> float | None:
    """The bill of all runs; None where the machine that they train on has no price."""
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
    """Of runs at once, all of their cost over the epochs of all."""
    usd, epochs = _usd(runs), sum(len(run.report["epochs"]) for run in runs)
    if usd is None or not epochs:
        return None
    if len(runs) > 1:
        return usd / epochs
    least, costs = runs[0].first_epoch + warmup_epochs, (runs[0].priced_bill or {})["epochs"]
    counted = [one["usd"] for one in costs if one["epoch"] >= least]
    return statistics.fmean(counted) if counted else None


# ------------------------------------------------------------------------------------------ in words


def are_apart(first: Spread, second: Spread) -> bool | None:
    """Whether every repeat of the one is below every repeat of the other; None: one ran once."""
    if min(len(first.values), len(second.values)) == 1:
        return None
    return first.most < second.least or second.most < first.least


def probability_of_apart(first: int, second: int) -> float:
    """How likely the ranges of two equal arms lie apart by chance alone, by so many repeats of each.

    Of all orders in which that many values can fall, two have those of one arm first.
    """
    return min(1.0, 2 / math.comb(first + second, first))


def conclusions(
    spreads: Mapping[str, Mapping[str, Spread | None]],
    warmup_epochs: int,
    *,
    failed: Mapping[str, int] | None = None,
    whole: frozenset[str] = frozenset(),
) -> tuple[tuple[str, str], ...]:
    """Return sentences on what the figures leave out or do not show, each after its subject.

    ``spreads`` are by the figure's key and the arm's name, ``failed`` is the number of rounds by the arm's
    name, ``whole`` the keys of figures that have the warm-up in them.
    """
    points = []
    repeats: dict[str, int] = {}
    for by_arm in spreads.values():
        for name, spread in by_arm.items():
            repeats[name] = max(repeats.get(name, 0), len(spread.values) if spread else 0)
    repeats = {name: times for name, times in repeats.items() if times}
    if len(repeats) > 1 and not any(spreads["usd"].values()):
        points.append(("Cost:", "not compared, because cost.machine names no machine of the price table."))
    titles = [one.title for one in FIGURES if one.key in whole and any(spreads[one.key].values())]
    points.append(("Warm-up:", _about_warmup(warmup_epochs, ", ".join(titles))))
    if len(repeats) > 1:
        points.append(("Chance:", _about_chance(repeats)))
    lost = ", ".join(f"{rounds} of {name}" for name, rounds in (failed or {}).items())
    return (*points, ("Failed:", f"rounds that are in no figure: {lost}.")) if lost else tuple(points)


def winner(figure: Figure, spreads: Mapping[str, Spread | None]) -> tuple[str, float | None] | None:
    """The arm with the best median, and by what factor the next one is worse, if that is not infinite.

    None where its range overlaps another's, or the medians are equal in three digits.
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
    """What chance alone does to the two arms that are most exposed to it, by how often each arm ran."""
    once = [name for name, times in repeats.items() if times == 1]
    if once:
        return f"{', '.join(once)} ran once, so the spread is unknown: repeat it (--repeats 3)."
    first, *others = repeats.values()
    probability, second = max((probability_of_apart(first, other), other) for other in others)
    return (
        f"where two arms are alike, the ranges of {first} and {second} repeats lie apart in one figure of "
        f"{round(1 / probability)} all the same."
    )
