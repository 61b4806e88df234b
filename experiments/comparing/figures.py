"""The figures of a round, their spread across repeats, and the winning arm."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from superdl.experiments.reporting.page import number, share, times

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from superdl.experiments.reporting.run_files import Pass, RunFiles


class Figure(NamedTuple):
    """How to display a field of `RoundFigures`."""

    key: str
    title: str
    unit: str
    more_is_better: bool = False
    whole: bool = False  # covers the whole run, including the warm-up


def _shown(title: str, unit: str, **more: bool) -> dict[str, Any]:
    return {"title": title, "unit": unit, **more}


# A new figure needs a field here and a line in round_figures.
@dataclass(frozen=True, slots=True)
class RoundFigures:
    """A round's figures, as defined in docs/runs.md. None means that a figure was not measured."""

    images_per_s: float | None = field(metadata=_shown("throughput", "images/s", more_is_better=True))
    step_ms: float | None = field(metadata=_shown("step time", "ms"))
    wait_percent: float = field(metadata=_shown("waiting for data", "% of training time"))
    cpu_ms_per_image: float | None = field(metadata=_shown("CPU of all processes", "ms/image"))
    outside_ms_per_image: float | None = field(metadata=_shown("of which outside the trainer", "ms/image"))
    usd_per_epoch: float | None = field(metadata=_shown("cost", "USD/epoch"))
    decodes_per_image: float | None = field(metadata=_shown("decodes", "per image of the set", whole=True))
    cpu_s: float | None = field(metadata=_shown("total CPU", "s", whole=True))
    usd: float | None = field(metadata=_shown("total cost", "USD", whole=True))
    wall_s: float | None = field(metadata=_shown("wall time", "s", whole=True))
    first_batch_s: float | None = field(metadata=_shown("time to first batch", "s", whole=True))
    accuracy: float | None = field(
        metadata=_shown("best validation accuracy", "", more_is_better=True, whole=True)
    )
    stall_percent_by_cause: dict[str, float]  # the share of training time spent in stalled steps
    cpu_ms_by_group: dict[str, float]  # per image, by process group


FIGURES = tuple(Figure(item.name, **item.metadata) for item in fields(RoundFigures) if item.metadata)


@dataclass(frozen=True, slots=True)
class RoundMeasured:
    """Measurements of one repeat of an arm. For existing runs, only ``runs`` and ``wall_s`` are set."""

    runs: tuple[RunFiles, ...]
    # From the start of the first process to the last report.
    wall_s: float | None = None
    # Of all descendant processes, as accounted by the operating system.
    cpu_s: float | None = None
    # Of services that the runs share: CPU time by process group, and start-up time.
    services_cpu_s: Mapping[str, float] = field(default_factory=dict)
    services_start_s: float = 0.0


def round_figures(measured: RoundMeasured, warmup_epochs: int) -> RoundFigures:
    """Compute a round's figures. Only those marked ``Figure.whole`` include the warm-up."""
    runs = measured.runs
    trained = [train_pass for run in runs for train_pass in run.trained[warmup_epochs:]]
    wall_s, waited_s = (_sum(trained, name) for name in ("wall_s", "wait_s"))
    stalls_s: Counter[str] = Counter()
    for train_pass in trained:
        stalls_s.update(train_pass.stalls)
    images = sum(_sum(run.passes_after(warmup_epochs), "samples") for run in runs)
    used_s = _cpu_by_group(measured, warmup_epochs) if images else {}
    per_image = {name: 1000 * used / images for name, used in used_s.items()}
    firsts = [run.facts["first_batch_s"] for run in runs]
    validated = [val_pass.metrics["accuracy"] for run in runs for val_pass in run.validated]
    return RoundFigures(
        images_per_s=_images_per_s(runs, trained, warmup_epochs),
        step_ms=times(share(wall_s, _sum(trained, "batches")), 1000),
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


def _sum(passes: Iterable[Pass], name: str) -> float:
    return math.fsum(each.metrics[name] for each in passes)


def _end_s(run: RunFiles, epochs: int) -> float | None:
    """Return the Unix time when the first ``epochs`` epochs ended. With 0, use the end of the start phase."""
    epoch = run.trained[epochs - 1].epoch if epochs else None
    ends = [phase.get("ended_at_s") for phase in run.phases if phase["epoch"] == epoch]
    return ends[-1] if ends else None


def _images_per_s(runs: Sequence[RunFiles], trained: Sequence[Pass], warmup_epochs: int) -> float | None:
    """Return training images per second, or None if the total time of concurrent runs is unknown."""
    wall_s = _sum(trained, "wall_s")
    # Rates of concurrent runs do not add up, because the last run is faster after the others have ended.
    if len(runs) > 1:
        begins = [begin for run in runs if (begin := _end_s(run, warmup_epochs)) is not None]
        ends = [end for run in runs if (end := _end_s(run, len(run.trained))) is not None]
        wall_s = max(ends, default=0.0) - min(begins, default=math.inf)
    return _sum(trained, "samples") / wall_s if wall_s > 0 else None


def _cpu_by_group(measured: RoundMeasured, warmup_epochs: int) -> dict[str, float]:
    """Return each process group's CPU seconds after the warm-up, or an empty mapping if they are unknown."""
    # With several ranks, phases cover only rank 0.
    if any(run.ranks > 1 for run in measured.runs):
        return {}
    # The CPU time of shared services is known only for whole rounds.
    if warmup_epochs and measured.services_cpu_s:
        return {}
    used = Counter(measured.services_cpu_s)
    for run in measured.runs:
        warm = {train_pass.epoch for train_pass in run.trained[warmup_epochs:]}
        for phase in run.phases:
            # Without a warm-up, include the start phase.
            if not warmup_epochs or phase["epoch"] in warm:
                used.update({name: group["cpu_s"] for name, group in phase["groups"].items()})
    return dict(used)


def _decodes_per_image(runs: Sequence[RunFiles]) -> float | None:
    jobs = [each.metrics["job"] for run in runs for each in run.passes]
    images = max(
        run.facts["train_samples"] + (run.facts["val_samples"] or 0) * bool(run.validated) for run in runs
    )
    return None if not images or None in jobs else sum(job["samples_produced"] for job in jobs) / images


def _usd(runs: Sequence[RunFiles]) -> float | None:
    """Return the cost of all runs, or None if a training machine has no price."""
    paid: dict[str, list[float]] = {}
    # Concurrent runs pay for these once, until the longest run ends. Likewise for cache nodes in the spec.
    shared = {"training machine", "data machines"}
    for run in runs:
        lines = (run.facts["bill"] or {}).get("lines", ())
        if {line["name"]: line["usd"] for line in lines}.get("training machine") is None:
            return None
        for line in lines:
            paid.setdefault(line["name"], []).append(line["usd"] or 0.0)
        if run.facts["spec"]["cost"]["cache_node"] is not None:
            shared.add("cache")
    return math.fsum(max(usd) if name in shared else math.fsum(usd) for name, usd in paid.items())


def _usd_per_epoch(runs: Sequence[RunFiles], warmup_epochs: int) -> float | None:
    """Return the mean cost per epoch. The warm-up is included only for concurrent runs."""
    usd, epochs = _usd(runs), sum(len(run.trained) for run in runs)
    if usd is None or not epochs:
        return None
    if len(runs) > 1:
        return usd / epochs
    counted = [cost["usd"] for cost in runs[0].facts["bill"]["epochs"][warmup_epochs:]]
    return statistics.fmean(counted) if counted else None


# ------------------------------------------------------------------------------------- over repeats


@dataclass(frozen=True, slots=True)
class Spread:
    """The values of a figure across all repeats."""

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
    """Return a figure's spread across rounds, or None if no round has a value."""
    values = [value for figures in rounds if (value := getattr(figures, key)) is not None]
    return Spread(tuple(values)) if values else None


def mean_by_name(tables: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean value of each name across tables, largest first. Missing names count as zero."""
    names = dict.fromkeys(name for table in tables for name in table)
    means = {name: math.fsum(table.get(name, 0.0) for table in tables) / len(tables) for name in names}
    return dict(sorted(means.items(), key=lambda item: -item[1]))


def winner(figure: Figure, spreads: Mapping[str, Spread | None]) -> tuple[str, float | None] | None:
    """Return the arm with the best median and its lead over the next best, as a factor (None if infinite).

    Return None if the arm's range overlaps another's, or if the best two medians agree to three digits.
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
