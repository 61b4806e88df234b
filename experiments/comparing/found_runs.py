"""Compares runs that were made elsewhere, as by a cluster's launcher, from the directories that they left.

Arms are the runs' names, or names given to them; runs of one name are its repeats.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from superdl.experiments.comparing.arms import Round
from superdl.experiments.comparing.comparison import ArmReport, Comparison, RoundReport, settings_of
from superdl.experiments.comparing.figures import round_figures
from superdl.experiments.comparing.measured import (
    RoundMeasured,
    RunMeasured,
    read_measured_run,
    read_prediction,
)
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["compare_runs"]


def compare_runs(named: Sequence[str], *, warmup_epochs: int | None = None) -> Comparison:
    """Compare the runs in ``named``, each a directory or ``NAME=directory``; nothing is run or written,
    so the comparison has no directory yet.

    Args:
        named: the runs; a file is a prediction that ``superdl simulate --output`` has written.
        warmup_epochs: of each run, left out; None: as the runs' specs say.

    Raises:
        ConfigError: a directory holds no run, a run did not finish, or the runs' specs differ in the warm-up.

    """
    start_s = time.monotonic()
    runs = [_named_run(word) for word in named]
    warmup = _warmup(runs) if warmup_epochs is None else warmup_epochs
    by_name: dict[str, list[RunMeasured]] = {}
    rounds = []
    for number, (name, place, run) in enumerate(runs, start=1):
        if run.status != "finished":
            raise ConfigError(f"the run in {place} is {run.status}: leave it out")
        if not any(one.epoch >= warmup for one in run.passes):
            raise ConfigError(
                f"of {place}, {warmup} warm-up epoch(s) leave nothing to compare; say --warmup-epochs 0"
            )
        repeats = by_name.setdefault(name, [])
        repeats.append(run)
        # Of a run that was found nobody has seen the processes from outside: its own clock tells its time.
        measured = RoundMeasured(name, len(repeats), (run,), wall_s=run.wall_s)
        figures = round_figures(measured, warmup)
        rounds.append(RoundReport(Round(number, len(repeats), name), str(place), figures, None))
    arms = tuple(_arm(name, repeats) for name, repeats in by_name.items())
    return Comparison(
        name="runs",
        status="finished",
        reason=None,
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        took_s=time.monotonic() - start_s,
        directory="",
        repeats=max(len(repeats) for repeats in by_name.values()),
        warmup_epochs=warmup,
        arms=arms,
        rounds=tuple(rounds),
        notes=tuple(_notes(runs)),
        spec={},
        environment=next(iter(_environments(runs)), {}),
    )


def _named_run(word: str) -> tuple[str, Path, RunMeasured]:
    name, equals, rest = word.partition("=")
    if not equals or Path(word).exists():
        name, rest = "", word
    place = Path(rest).expanduser()
    run = read_prediction(place) if place.is_file() else read_measured_run(place)
    return name or run.name, place, run


def _warmup(runs: Sequence[tuple[str, Path, RunMeasured]]) -> int:
    told = {
        run.facts["spec"].get("compare", {}).get("warmup_epochs", 1)
        for _, _, run in runs
        if not run.simulated
    } or {1}
    if len(told) > 1:
        raise ConfigError(
            f"the runs' specs differ in compare.warmup_epochs ({', '.join(map(str, sorted(told)))}): say "
            "--warmup-epochs"
        )
    return int(told.pop())


def _arm(name: str, repeats: Sequence[RunMeasured]) -> ArmReport:
    simulated = {run.simulated for run in repeats}
    if len(simulated) > 1:
        raise ConfigError(f"{name} has both runs and predictions: give the predictions a name, NAME=FILE")
    if simulated == {True}:
        return ArmReport(name, simulated=True)
    loader = repeats[0].facts["spec"]["loader"]
    values = {"loader.kind": loader["kind"], "loader.batch_size": loader["batch_size"]}
    return ArmReport(name, values, settings=settings_of(repeats[0]))


def _notes(runs: Sequence[tuple[str, Path, RunMeasured]]) -> Iterator[str]:
    """What a reader must know of how the runs were made, and of what they do not tell."""
    yield (
        "The runs were made before and not interleaved: what changed on the machine between them is in the "
        "figures. Wall time is the run's own, without the start of its process."
    )
    machines = {
        tuple(str(one.get(key)) for key in ("machine", "usable_cpus", "device", "device_name", "platform"))
        for one in _environments(runs)
    }
    if len(machines) > 1:
        yield f"The runs are of {len(machines)} different machines or systems: ratios compare those too."
    for name in sorted({name for name, _, run in runs if run.used_another_coordinator}):
        yield (
            f"{name} used a coordinator that it did not start: its CPU, and that of its cache and functions, "
            "is not counted, and its cache held what others had left."
        )
    for name, ranks in sorted({(name, run.ranks) for name, _, run in runs if run.ranks > 1}):
        yield (
            f"{name} had {ranks} ranks: their CPU is not compared, since its report has that of rank 0 alone."
        )
    for _, place, run in runs:
        if run.first_epoch > 0:
            yield (
                f"{place} went on with epoch {run.first_epoch + 1}: its warm-up is counted from there, and "
                "its time, CPU and cost are without what was trained before."
            )


def _environments(runs: Sequence[tuple[str, Path, RunMeasured]]) -> list[dict[str, Any]]:
    found = [run.facts.get("environment") for _, _, run in runs if not run.simulated]
    return [one for one in found if isinstance(one, dict)]
