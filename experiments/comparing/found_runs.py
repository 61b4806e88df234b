"""Compares runs that were made elsewhere, as by a cluster's launcher, from the directories that they left.

Arms are the runs' names, or names given to them; runs of one name are its repeats.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from superdl.experiments.comparing.comparison import ArmReport, Comparison, RoundReport
from superdl.experiments.comparing.figures import round_figures
from superdl.experiments.comparing.measured import RoundMeasured, RunMeasured, read_measured_run
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    _Found = Sequence[tuple[str, Path, RunMeasured]]

__all__ = ["compare_runs"]

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
    found = [_named_run(word) for word in named]
    warmup = _warmup(found) if warmup_epochs is None else warmup_epochs
    arms: dict[str, ArmReport] = {}
    rounds: list[RoundReport] = []
    for number, (name, place, run) in enumerate(found, start=1):
        if run.status != "finished":
            raise ConfigError(f"the run in {place} is {run.status}: leave it out")
        if not run.after(warmup):
            raise ConfigError(
                f"of {place}, {warmup} warm-up epoch(s) leave nothing to compare; say --warmup-epochs 0"
            )
        loader = (run.spec or {})["loader"]
        values = {f"loader.{key}": loader[key] for key in ("kind", "batch_size")}
        arms.setdefault(name, ArmReport(name, values, settings=run.loader_settings or {}))
        repeat = 1 + sum(one.arm == name for one in rounds)
        # Of a run that was found nobody has seen the processes from outside: its own clock tells its time.
        figures = round_figures(RoundMeasured((run,), wall_s=run.wall_s), warmup)
        rounds.append(RoundReport(number, repeat, name, str(place), figures))
    return Comparison(
        name="runs",
        status="finished",
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        directory="",
        repeats=max(one.repeat for one in rounds),
        warmup_epochs=warmup,
        arms=list(arms.values()),
        rounds=rounds,
        notes=list(_notes(found)),
        environment=found[0][2].environment or {},
    )


def _named_run(word: str) -> tuple[str, Path, RunMeasured]:
    name, equals, rest = word.partition("=")
    if not equals or Path(word).exists():
        name, rest = "", word
    place = Path(rest).expanduser()
    run = read_measured_run(place)
    return name or run.name, place, run


def _warmup(found: _Found) -> int:
    told = {(run.spec or {}).get("compare", {}).get("warmup_epochs", 1) for _, _, run in found}
    if len(told) > 1:
        differ = ", ".join(map(str, sorted(told)))
        raise ConfigError(f"the runs' specs differ in compare.warmup_epochs ({differ}): say --warmup-epochs")
    return int(told.pop())


def _notes(found: _Found) -> Iterator[str]:
    """What a reader must know of how the runs were made, and of what they do not tell."""
    yield (
        "The runs were made before and not interleaved: what changed on the machine between them is in the "
        "figures. Wall time is the run's own, without the start of its process."
    )
    machines = {tuple(str((run.environment or {}).get(key)) for key in _MACHINE) for _, _, run in found}
    if len(machines) > 1:
        yield f"The runs are of {len(machines)} different machines or systems: ratios compare those too."
    for name in sorted({name for name, _, run in found if run.used_another_coordinator}):
        yield (
            f"{name} used a coordinator that it did not start: its CPU, and that of its cache and functions, "
            "is not counted, and its cache held what others had left."
        )
    for name, ranks in sorted({(name, run.ranks) for name, _, run in found if run.ranks > 1}):
        yield f"{name} had {ranks} ranks: their CPU is not compared, since its report has rank 0's alone."
    for _, place, run in found:
        if run.first_epoch > 0:
            yield (
                f"{place} went on with epoch {run.first_epoch + 1}: its warm-up is counted from there, and "
                "its time, CPU and cost are without what was trained before."
            )
