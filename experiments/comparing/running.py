"""Run a comparison round by round, and write the results after each round."""

from __future__ import annotations

import contextlib
import os
import resource
import time
import uuid
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import psutil

from superdl.experiments.comparing.arms import Arm, arms_of, rounds_of
from superdl.experiments.comparing.comparison import ArmReport, Comparison, RoundReport, notes_of
from superdl.experiments.comparing.figures import RoundMeasured, round_figures
from superdl.experiments.comparing.processes import RunProcess, run_together
from superdl.experiments.comparing.show import comparison_page, print_comparison
from superdl.experiments.console import say
from superdl.experiments.data import prepare_data
from superdl.experiments.machine import describe_machine
from superdl.experiments.monitoring import ProcessGroups
from superdl.experiments.output import new_directory, now_text, write_whole
from superdl.experiments.reporting.page import PAGE_NAME, number
from superdl.experiments.reporting.run_files import read_run
from superdl.experiments.training.device import pick_device
from superdl.super_wire.errors import SuperError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console

    from superdl.experiments.comparing.arms import Round, Trial
    from superdl.experiments.spec import Spec

_GRACE_S = 0.1  # no process uses the services after the last trial


def compare(spec: Spec, *, arms: Sequence[str] | None = None, console: Console) -> Comparison:
    """Run the arms of ``spec`` in interleaved rounds, and print, write and return the comparison.

    The comparison is written after each round and at the end, even after an error.

    Args:
        spec: the work to compare. Its ``compare`` section configures the comparison.
        arms: the names of the arms to run, by default all.
        console: the console for progress messages and tables.

    Raises:
        ConfigError: the spec of an arm or a trial is invalid. Nothing was run.
        SuperError: a run failed, or the data or the shared services are not available.
        KeyboardInterrupt: the user interrupted the comparison.
    """
    chosen = arms_of(spec, arms)
    device, directory = pick_device(spec.device), new_directory(spec.output, f"{spec.name}-compare")
    spec.write(directory / "spec.yaml")
    report = Comparison(
        name=spec.name,
        started_at=now_text(),
        directory=str(directory),
        repeats=spec.compare.repeats,
        warmup_epochs=spec.compare.warmup_epochs,
        arms=[
            ArmReport(arm.name, dict(arm.values), [trial.name for trial in arm.trials if trial.name])
            for arm in chosen
        ],
        spec=spec.to_mapping(),
        environment=describe_machine(device),
    )
    start_s = time.monotonic()
    say(console, f"comparing {', '.join(arm.name for arm in chosen)}; writing to {directory}")
    try:
        for data in {trial.spec.data: None for arm in chosen for trial in arm.trials}:  # not timed
            prepare_data(data, partial(say, console))
        _run_all(report, chosen, console)
    except BaseException as error:
        report.status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        report.reason = f"{type(error).__name__}: {error}".removesuffix(": ")
        raise
    finally:
        report.took_s = time.monotonic() - start_s
        publish(report, console)
    return report


def publish(report: Comparison, console: Console) -> None:
    """Write a comparison's files to its directory, and print the comparison."""
    directory = Path(report.directory)
    report.write(directory)
    write_whole(comparison_page(report), directory / PAGE_NAME)
    print_comparison(report, console)


def _run_all(report: Comparison, arms: Sequence[Arm], console: Console) -> None:
    rounds, directory = rounds_of([arm.name for arm in arms], report.repeats), Path(report.directory)
    for turn in rounds:
        arm = next(arm for arm in arms if arm.name == turn.arm)
        at_once = f", {len(arm.trials)} trials at once" if len(arm.trials) > 1 else ""
        label, folder = f"[{turn.number}/{len(rounds)}]", Path("runs", f"{turn.number:02d}-{turn.arm}")
        say(console, f"{label} {turn.arm}, repeat {turn.repeat} of {report.repeats}{at_once}")
        measured = _run_round(turn, arm, directory / folder)
        figures = round_figures(measured, report.warmup_epochs)
        report.rounds.append(RoundReport(*turn, str(folder), figures))
        report.notes += notes_of(turn.arm, measured, report.warmup_epochs) if turn.repeat == 1 else ()
        rate = f"{number(figures.images_per_s)} images/s, {figures.wait_percent:.1f}% waiting"
        say(console, f"{label} {turn.arm} done in {measured.wall_s:.1f} s: {rate}")
        report.write(directory)
    report.status = "finished"


# ------------------------------------------------------------------------------------------ one round


def _run_round(turn: Round, arm: Arm, folder: Path) -> RoundMeasured:
    """Run all trials of ``arm`` concurrently in ``folder``, and read their reports."""
    before_s, begun_at_s = _children_cpu_s(), time.time()
    with contextlib.ExitStack() as stack:
        services = None
        if arm.shares and not os.environ.get("SUPER_COORDINATOR"):
            services = stack.enter_context(_shared_services())
        runs = [_run_of(trial, folder, turn, services, arm.launch) for trial in arm.trials]
        start_s = time.time() - begun_at_s
        run_together(runs)
        if any(run.code for run in runs):
            raise SuperError(_failure(runs, folder))
        used = {}
        if services is not None:
            with contextlib.suppress(psutil.NoSuchProcess):  # a restarted coordinator
                used = services.processes.read()
    cpu_s = _children_cpu_s() - before_s  # all have exited, including shared services
    places = [_run_in(run.output.parent) for run in runs]
    return RoundMeasured(
        runs=tuple(map(read_run, places)),
        # Up to the last report, because the processes then wait for their services.
        wall_s=max((place / "report.json").stat().st_mtime for place in places) - begun_at_s,
        cpu_s=cpu_s,
        services_cpu_s={name: reading.cpu_s for name, reading in used.items()},
        services_start_s=0.0 if services is None else start_s,
    )


def _run_of(
    trial: Trial, folder: Path, turn: Round, services: _Services | None, launch: tuple[str, ...]
) -> RunProcess:
    place = folder / trial.name if trial.name else folder
    place.mkdir(parents=True)
    spec = replace(trial.spec, output=str(place))
    if services is not None and spec.loader.runs_functions:
        spec = replace(spec, loader=replace(spec.loader, coordinator=services.address))
    spec.write(place / "spec.yaml")
    title = f"{turn.arm}, repeat {turn.repeat}" + (f", trial {trial.name}" if trial.name else "")
    return RunProcess(title, place / "spec.yaml", place / "output.txt", launch)


def _run_in(place: Path) -> Path:
    """Return the latest run in ``place``. Without one, return ``place`` itself, which `read_run` rejects."""
    directories = sorted(entry for entry in place.iterdir() if (entry / "report.json").is_file())
    return directories[-1] if directories else place


def _failure(runs: Sequence[RunProcess], folder: Path) -> str:
    # Prefer the run that failed on its own to those that were ended because of it.
    failed = min((run for run in runs if run.code), key=lambda run: run.was_ended)
    code = failed.code or 0
    ending = f"signal {-code}" if code < 0 else f"exit code {code}"
    last_lines = failed.last_lines().replace("\n", "\n  ")
    return f"the run of {failed.title} ended with {ending}. The last lines of {folder}:\n  {last_lines}"


def _children_cpu_s() -> float:
    """Return the CPU seconds used by all child processes that have exited, and by their descendants."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class _Services(NamedTuple):
    address: str
    processes: ProcessGroups


@contextlib.contextmanager
def _shared_services() -> Iterator[_Services]:
    """Start cold services for a round's trials to share, and release them when the block exits."""
    from superdl.sampler.embedded.embedded import Embedded  # imports torch
    from superdl.sampler.embedded.settings import EmbeddedSettings

    settings = replace(EmbeddedSettings.of_this_host(), grace_s=_GRACE_S)
    held = Embedded(f"compare:{uuid.uuid4().hex}", settings)
    try:
        (coordinator,) = held.processes()
        processes = ProcessGroups(psutil.Process(coordinator.pid), name="coordinator")
        yield _Services(held.coordinator, processes)
    finally:
        held.release()
