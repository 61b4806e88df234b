"""The arithmetic of a comparison: what one round of an arm comes to, and how its repeats spread. Pure.

Reading runs is left to `measured`, what may be concluded to `conclusions`. A further figure is a field of
`RoundFigures`, a line of `FIGURES` and a line of `round_figures`.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from superdl.experiments.comparing.measured import PassMeasured, RoundMeasured, RunMeasured

__all__ = ["FIGURES", "Figure", "RoundFigures", "Spread", "mean_by_name", "round_figures", "spread_of"]


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure that people see: its name in `RoundFigures`, its title with unit, and which way is better.

    ``sentence`` says how two arms differ by a factor. ``whole``: it is of the whole run, warm-up included.
    """

    key: str
    title: str
    unit: str
    sentence: str
    more_is_better: bool = False
    whole: bool = False


FIGURES = (
    Figure(
        "images_per_s",
        "throughput",
        "images/s",
        "{better} trains {factor} times as fast as {worse}",
        more_is_better=True,
    ),
    Figure(
        "wait_percent",
        "waiting for data",
        "% of training time",
        "{worse} waits {factor} times as long a share as {better}",
    ),
    Figure(
        "cpu_ms_per_image",
        "CPU of all processes",
        "ms/image",
        "{worse} takes {factor} times the CPU of {better}, the model's work with it",
    ),
    Figure(
        "outside_ms_per_image",
        "thereof outside the trainer",
        "ms/image",
        "outside the training process {worse} takes {factor} times the CPU of {better}",
    ),
    Figure("usd_per_epoch", "cost", "USD/epoch", "{worse} costs {factor} times as much as {better}"),
    Figure(
        "decodes_per_image",
        "decodes",
        "per image of the set",
        "{worse} decodes an image {factor} times as often as {better}",
        whole=True,
    ),
    Figure(
        "cpu_s",
        "CPU in all",
        "s",
        "from start to end {worse} takes {factor} times the CPU of {better}",
        whole=True,
    ),
    Figure(
        "usd",
        "cost in all",
        "USD",
        "from start to end {worse} costs {factor} times as much as {better}",
        whole=True,
    ),
    Figure("wall_s", "wall time", "s", "{worse} takes {factor} times as long as {better}", whole=True),
    Figure(
        "first_batch_s",
        "first batch after",
        "s",
        "{worse} has its first batch after {factor} times as long as {better}",
        whole=True,
    ),
)


@dataclass(frozen=True, slots=True)
class RoundFigures:
    """What one round of an arm comes to; None where it was not measured.

    Epochs after the warm-up alone are in the first five. Throughput is training images over the time of the
    training passes; of runs at once, over the time from the first one's first epoch to the last one's end.
    Waiting is the share of all training time, and ``stall_percent_by_cause`` says why, for steps that
    stalled. CPU is that of every process, the model's own work with it; outside the trainer is what
    DataLoader workers, functions, coordinator and cache take, and ``cpu_ms_by_group`` says which of them.
    ``decodes_per_image`` are the images that were fetched and decoded for all runs together, for each that
    the set has, validation images among them if a run validated. Runs at once have one machine, which is
    paid once; their cost by epoch is all of it over the epochs of all. The first batch is that of the run
    which got it last.
    """

    images_per_s: float | None
    wait_percent: float
    cpu_ms_per_image: float | None
    outside_ms_per_image: float | None
    usd_per_epoch: float | None
    decodes_per_image: float | None
    cpu_s: float | None
    usd: float | None
    wall_s: float | None
    first_batch_s: float | None
    stall_percent_by_cause: Mapping[str, float]
    cpu_ms_by_group: Mapping[str, float]
    decodes_by_epoch: Mapping[int, float]
    val_accuracy: tuple[float, ...]


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
    """Work one round out, leaving the first epochs of each run out where `RoundFigures` says so."""
    everything = [
        one
        for run in measured.runs
        for one in run.passes
        if one.split == "train" and one.epoch >= warmup_epochs
    ]
    wall_s = math.fsum(one.wall_s for one in everything)
    by_group = _cpu_by_group(measured, warmup_epochs)
    images = _images(measured.runs, warmup_epochs)
    per_image = {name: 1000 * used / images for name, used in by_group.items()} if images else {}
    decodes = _decodes_by_epoch(measured.runs)
    return RoundFigures(
        images_per_s=_images_per_s(measured.runs, everything, warmup_epochs),
        wait_percent=100 * math.fsum(one.wait_s for one in everything) / wall_s if wall_s > 0 else 0.0,
        cpu_ms_per_image=math.fsum(per_image.values()) if per_image else None,
        outside_ms_per_image=(
            math.fsum(used for name, used in per_image.items() if name != "trainer") if per_image else None
        ),
        usd_per_epoch=_usd_per_epoch(measured.runs, warmup_epochs),
        decodes_per_image=None if decodes is None else math.fsum(decodes.values()),
        cpu_s=measured.cpu_s,
        usd=_usd(measured.runs),
        wall_s=measured.wall_s,
        first_batch_s=_last_first_batch_s(measured),
        stall_percent_by_cause=_stall_percent(everything),
        cpu_ms_by_group=per_image,
        decodes_by_epoch=decodes or {},
        val_accuracy=tuple(value for run in measured.runs if (value := _val_accuracy(run)) is not None),
    )


def _images_per_s(
    runs: Sequence[RunMeasured], passes: Sequence[PassMeasured], warmup_epochs: int
) -> float | None:
    """Training images over the time of their passes; of runs at once, over the time until all had ended.
    None: nobody knows that time, since it is taken from samples of the processes.

    Rates of such runs are not added up: the last one is fast when the others have gone.
    """
    wall_s = math.fsum(one.wall_s for one in passes)
    if len(runs) > 1:
        begins = [run.epoch_ends_at_s.get(warmup_epochs - 1) for run in runs]
        ends = [max(run.epoch_ends_at_s.values(), default=0.0) for run in runs]
        wall_s = max(ends) - min((begin for begin in begins if begin is not None), default=math.inf)
    return sum(one.samples for one in passes) / wall_s if wall_s > 0 else None


def _stall_percent(passes: Sequence[PassMeasured]) -> dict[str, float]:
    """What share of training time the stalls of each cause are."""
    wall_s = math.fsum(one.wall_s for one in passes)
    causes: dict[str, float] = defaultdict(float)
    for one in passes:
        for cause, waited_s in one.stalls_s.items():
            causes[cause] += waited_s
    return {cause: 100 * waited_s / wall_s for cause, waited_s in causes.items()} if wall_s > 0 else {}


def _images(runs: Sequence[RunMeasured], warmup_epochs: int) -> int:
    """Images trained on or validated with, after the warm-up."""
    return sum(one.samples for run in runs for one in run.passes if one.epoch >= warmup_epochs)


def _cpu_by_group(measured: RoundMeasured, warmup_epochs: int) -> dict[str, float]:
    """CPU seconds after the warm-up, by group; without a warm-up the start of the runs is in it.

    Empty where a run had several ranks: its phases are of rank 0 alone.
    """
    if any(run.ranks > 1 for run in measured.runs):
        return {}
    used: dict[str, float] = defaultdict(float)
    for run in measured.runs:
        for phase in run.phases:
            epoch = -1 if phase.epoch is None else phase.epoch
            if epoch >= warmup_epochs or warmup_epochs == 0:
                for name, seconds in phase.cpu_s.items():
                    used[name] += seconds
    for name, seconds in _services_cpu_s(measured, warmup_epochs).items():
        used[name] += seconds
    return dict(used)


def _services_cpu_s(measured: RoundMeasured, warmup_epochs: int) -> dict[str, float]:
    """What the shared services used after the first of the runs was through its warm-up.

    So what they did for the warm-up of slower runs is counted too: in doubt against them.
    """
    if not measured.services:
        return {}
    last = measured.services[-1][1]
    before: Mapping[str, float] = {}
    ends = [run.epoch_ends_at_s.get(warmup_epochs - 1, -math.inf) for run in measured.runs]
    if warmup_epochs > 0 and ends:
        earlier = [used for at_s, used in measured.services if at_s <= min(ends)]
        before = earlier[-1] if earlier else {}
    return {name: max(0.0, seconds - before.get(name, 0.0)) for name, seconds in last.items()}


def _decodes_by_epoch(runs: Sequence[RunMeasured]) -> dict[int, float] | None:
    """How often an image of the set was decoded, on average, in each epoch, for all runs; None: not told."""
    images = max((_images_read(run) for run in runs), default=0)
    if not images or any(one.produced is None for run in runs for one in run.passes):
        return None
    produced: dict[int, int] = defaultdict(int)
    for run in runs:
        for one in run.passes:
            produced[one.epoch] += one.produced or 0
    return {epoch: count / images for epoch, count in sorted(produced.items())}


def _images_read(run: RunMeasured) -> int:
    """How many images there are in the splits that it has read: nobody counts what is decoded of another."""
    return run.train_samples + (run.val_samples if any(one.split == "val" for one in run.passes) else 0)


def _usd(runs: Sequence[RunMeasured]) -> float | None:
    """The bill of all runs; None where the machine that they train on has no price."""
    bills = [run.bill for run in runs if run.bill is not None]
    if not bills or len(bills) < len(runs):
        return None
    lines: dict[str, list[float]] = defaultdict(list)
    for bill in bills:
        for name, usd in bill.lines.items():
            lines[name].append(usd)
    shared = frozenset().union(*(bill.by_hour for bill in bills))
    return math.fsum(max(paid) if name in shared else math.fsum(paid) for name, paid in lines.items())


def _usd_per_epoch(runs: Sequence[RunMeasured], warmup_epochs: int) -> float | None:
    usd = _usd(runs)
    if usd is None:
        return None
    if len(runs) > 1:
        epochs = sum(one.split == "train" for run in runs for one in run.passes)
        return usd / epochs if epochs else None
    bill = runs[0].bill
    counted = (
        [] if bill is None else [paid for epoch, paid in bill.by_epoch.items() if epoch >= warmup_epochs]
    )
    return statistics.fmean(counted) if counted else None


def _last_first_batch_s(measured: RoundMeasured) -> float | None:
    first = [_first_batch_s(run) for run in measured.runs]
    known = [value for value in first if value is not None]
    return measured.services_start_s + max(known) if known and len(known) == len(first) else None


def _first_batch_s(run: RunMeasured) -> float | None:
    """From the start of the run, its data and its services until the first training batch was there."""
    start = [phase.wall_s for phase in run.phases if phase.epoch is None]
    first = [one.first_batch_s for one in run.passes if one.split == "train"]
    return math.fsum(start) + first[0] if start and first else None


def _val_accuracy(run: RunMeasured) -> float | None:
    validated = [one.accuracy for one in run.passes if one.split == "val"]
    return validated[-1] if validated else None
