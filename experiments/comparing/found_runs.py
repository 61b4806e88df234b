"""Compares runs that were made elsewhere, as by a cluster's launcher, from the directories that they left.

Arms are the runs' names, or names given to them; runs of one name are its repeats.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from superdl.experiments.comparing.comparison import ArmReport, Comparison, RoundReport
from superdl.experiments.comparing.figures import round_figures
from superdl.experiments.comparing.measured import RoundMeasured, read_measured_run
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["compare_runs"]

_MADE_BEFORE = (
    "The runs were made before and not interleaved: what changed on the machine between them is in the "
    "figures. Wall time is the run's own, without the start of its process."
)
_MACHINE = ("machine", "usable_cpus", "device", "device_name", "platform")


def compare_runs(named: Sequence[str], *, warmup_epochs: int | None = None) -> Comparison:
    """Compare the runs in ``named``, each a directory or ``NAME=directory``; nothing is run or written, so
    the comparison has no directory yet.

    Args:
        named: the runs.
        warmup_epochs: of each run, left out; None: as the runs' specs say.

    Raises:
        ConfigError: a directory holds no run, a run did not finish, or the runs' specs differ in the warm-up.

    """
    places = [_place(word) for word in named]
    runs = [read_measured_run(place) for _, place in places]
    names = [name or run.report["name"] for (name, _), run in zip(places, runs, strict=True)]
    told = {run.report["spec"]["compare"]["warmup_epochs"] for run in runs}
    if warmup_epochs is None and len(told) > 1:
        differ = ", ".join(map(str, sorted(told)))
        raise ConfigError(f"the runs' specs differ in compare.warmup_epochs ({differ}): say --warmup-epochs")
    warmup = told.pop() if warmup_epochs is None else warmup_epochs
    arms: dict[str, ArmReport] = {}
    rounds: list[RoundReport] = []
    notes = [_MADE_BEFORE]
    machines = {tuple(run.report["environment"].get(key) for key in _MACHINE) for run in runs}
    if len(machines) > 1:
        notes.append(
            f"The runs are of {len(machines)} different machines or systems: ratios compare those too."
        )
    for name, (_, place), run in zip(names, places, runs, strict=True):
        report = run.report
        if report["status"] != "finished":
            raise ConfigError(f"the run in {place} is {report['status']}: leave it out")
        if not run.after(warmup):
            raise ConfigError(
                f"of {place}, {warmup} warm-up epoch(s) leave nothing to compare; say --warmup-epochs 0"
            )
        values = {f"loader.{key}": report["spec"]["loader"][key] for key in ("kind", "batch_size")}
        arms.setdefault(name, ArmReport(name, values, settings=report["loader_settings"]))
        repeat = 1 + names[: len(rounds)].count(name)
        # Of a run that was found nobody has seen the processes from outside: its own clock tells its time.
        figures = round_figures(RoundMeasured((run,), wall_s=report["wall_s"]), warmup)
        rounds.append(RoundReport(len(rounds) + 1, repeat, name, str(place), figures))
        notes += _notes(str(place), report, run.first_epoch)
    return Comparison(
        name="runs",
        status="finished",
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        directory="",
        repeats=max(one.repeat for one in rounds),
        warmup_epochs=warmup,
        arms=list(arms.values()),
        rounds=rounds,
        notes=notes,
        environment=runs[0].report["environment"],
    )


def _place(word: str) -> tuple[str, Path]:
    """The name, which may be empty, and the directory."""
    name, equals, rest = word.partition("=")
    return (
        (name, Path(rest).expanduser())
        if equals and not Path(word).exists()
        else ("", Path(word).expanduser())
    )


def _notes(place: str, report: Mapping[str, Any], first_epoch: int) -> Iterator[str]:
    """What the report of a run does not tell."""
    if str(report["executor"]).startswith("as the coordinator"):
        yield (
            f"{place} used a coordinator that it did not start: its CPU, and that of its cache and functions,"
            " is not counted, and its cache held what others had left."
        )
    if report["ranks"] > 1:
        yield f"{place} had {report['ranks']} ranks: their CPU is not compared, as the report has rank 0's."
    if first_epoch > 0:
        yield (
            f"{place} went on with epoch {first_epoch + 1}: its warm-up is counted from there, and its time, "
            "CPU and cost are without what was trained before."
        )
