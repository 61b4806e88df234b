"""Run a comparison round by round in one directory, and write the results after each round."""

from __future__ import annotations

import contextlib
import os
import resource
import time
import uuid
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from superdl.experiments.comparing.arms import Arm, arms_of, rounds_of
from superdl.experiments.comparing.comparison import ArmReport, Comparison, RoundReport, read_report
from superdl.experiments.comparing.figures import RoundMeasured, round_figures
from superdl.experiments.comparing.processes import RunProcess, run_together
from superdl.experiments.comparing.show import comparison_page, print_comparison
from superdl.experiments.console import say
from superdl.experiments.data import prepare_data
from superdl.experiments.machine import describe_environment, describe_hardware
from superdl.experiments.monitoring import ProcessGroups
from superdl.experiments.output import new_directory, now_text, write_whole
from superdl.experiments.reporting.page import PAGE_NAME, number
from superdl.experiments.reporting.run_page import write_run_page
from superdl.experiments.run.training_run import embedded_executor
from superdl.experiments.training.device import pick_device
from superdl.super_wire.errors import SuperError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console

    from superdl.experiments.comparing.arms import Round, Trial
    from superdl.experiments.comparing.figures import CpuSample
    from superdl.experiments.spec import Spec

_GRACE_S = 0.1  # no process rejoins the services after the last trial


class ComparisonFailedError(SuperError):
    """A run of a comparison failed. The message quotes its last lines."""


def compare(
    spec: Spec, *, arms: Sequence[str] | None = None, keep_going: bool = False, console: Console
) -> Comparison:
    """Run the arms of ``spec`` interleaved, print and write the comparison, and return it.

    The report is written after each round and at the end, even after an error.

    Args:
        spec: the work to compare; its ``compare`` section configures the comparison.
        arms: names of the arms, by default all.
        keep_going: whether to continue after a failed run, without its figures.
        console: receives progress and tables.

    Raises:
        ConfigError: the spec of an arm or a trial is invalid; nothing was run.
        ComparisonFailedError: a run failed, and ``keep_going`` is false.
        SuperError: the data or the shared services are not available.
        KeyboardInterrupt: the user interrupted.
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
        notes=[note for arm in chosen for note in _notes(arm)],
        spec=spec.to_mapping(),
        environment=describe_environment(device) | {"cpu": describe_hardware()["cpu"]},
    )
    start_s = time.monotonic()
    say(console, f"comparing {', '.join(arm.name for arm in chosen)}; writing to {directory}")
    try:
        for data in {trial.spec.data: None for arm in chosen for trial in arm.trials}:  # nothing is timed yet
            prepare_data(data, partial(say, console))
        _run_all(report, chosen, console, keep_going=keep_going)
    except BaseException as error:
        report.status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        report.reason = f"{type(error).__name__}: {error}".removesuffix(": ")
        raise
    finally:
        report.took_s = time.monotonic() - start_s
        publish(report, console)
    return report


def publish(report: Comparison, console: Console) -> None:
    """Write the comparison's files into its directory, and print it."""
    directory = Path(report.directory)
    report.write(directory)
    write_whole(comparison_page(report), directory / PAGE_NAME)
    print_comparison(report, console)


def _run_all(report: Comparison, arms: Sequence[Arm], console: Console, *, keep_going: bool) -> None:
    rounds, directory = rounds_of([arm.name for arm in arms], report.repeats), Path(report.directory)
    for turn in rounds:
        arm, of_arm = next(pair for pair in zip(arms, report.arms, strict=True) if pair[0].name == turn.arm)
        at_once = f", {len(arm.trials)} trials at once" if len(arm.trials) > 1 else ""
        label, folder = f"[{turn.number}/{len(rounds)}]", Path("runs", f"{turn.number:02d}-{turn.arm}")
        say(console, f"{label} {turn.arm}, repeat {turn.repeat} of {report.repeats}{at_once}")
        try:
            measured = _run_round(turn, arm, directory / folder)
        except ComparisonFailedError as error:
            report.rounds.append(RoundReport(*turn, str(folder), None, str(error)))
            if not keep_going:
                raise
            say(console, f"{label} {turn.arm} failed")
        else:
            of_arm.settings = of_arm.settings or measured.runs[0]["loader_settings"]
            figures = round_figures(measured, report.warmup_epochs)
            report.rounds.append(RoundReport(*turn, str(folder), figures))
            rate = f"{number(figures.images_per_s)} images/s, {figures.wait_percent:.1f}% waiting"
            say(console, f"{label} {turn.arm} done in {measured.wall_s:.1f} s: {rate}")
        if len(arm.trials) == 1:  # pages of many trials are not worth a second each
            _write_pages(directory / folder, console)
        report.write(directory)
    failed = len(rounds) - report.measured
    report.status = "failed" if failed else "finished"
    report.reason = f"{failed} of {len(rounds)} rounds failed" if failed else None


def _write_pages(folder: Path, console: Console) -> None:
    # Drawn after the round, when nothing is timed.
    for path in sorted(folder.rglob("report.json")):
        try:
            write_run_page(path.parent)
        except Exception as error:  # noqa: BLE001  # the figures matter more than any error in drawing
            say(console, f"could not write the page of {path.parent} ({error}); retry with superdl report")


def _notes(arm: Arm) -> Iterator[str]:
    """Yield notes on what affects an arm's figures."""
    functions = [trial.spec for trial in arm.trials if trial.spec.loader.runs_functions]
    variable = os.environ.get("SUPER_COORDINATOR")
    for address in sorted({spec.loader.coordinator or variable or "" for spec in functions} - {""}):
        yield (
            f"{arm.name} uses the coordinator at {address}. The CPU time of that coordinator, its cache and "
            "its functions is not counted, and its cache contains data left by earlier runs."
        )
    elsewhere = sorted({spec.executor for spec in functions} - {"auto", "local"})
    if elsewhere:
        yield f"{arm.name} runs functions with {', '.join(elsewhere)}: their CPU time is not counted."


# ------------------------------------------------------------------------------------------ one round


def _run_round(turn: Round, arm: Arm, folder: Path) -> RoundMeasured:
    """Run all trials of ``arm`` concurrently below ``folder``, and read their reports."""
    before_s, begun_at_s = _children_cpu_s(), time.time()
    with contextlib.ExitStack() as stack:
        services = None
        if arm.sharing is not None and not os.environ.get("SUPER_COORDINATOR"):
            services = stack.enter_context(_shared_services(arm.sharing))
        runs = [_run_of(trial, folder, turn, services, arm.launch) for trial in arm.trials]
        start_s = time.time() - begun_at_s
        run_together(runs, services.sample if services else lambda: None)
    cpu_s = _children_cpu_s() - before_s  # all have ended, including shared services
    if any(run.code for run in runs):
        raise ComparisonFailedError(_failure(runs, folder))
    places = [_run_in(run.output.parent) for run in runs]
    return RoundMeasured(
        runs=tuple(map(read_report, places)),
        # Until the last report: the processes themselves also wait for their services.
        wall_s=max((place / "report.json").stat().st_mtime for place in places) - begun_at_s,
        cpu_s=cpu_s,
        services=tuple(services.samples) if services else (),
        services_start_s=start_s if services else 0.0,
    )


def _run_of(
    trial: Trial, folder: Path, turn: Round, services: _SharedServices | None, launch: tuple[str, ...]
) -> RunProcess:
    """Write the trial's complete spec, so that ``superdl run`` can repeat it."""
    place = folder / trial.name if trial.name else folder
    place.mkdir(parents=True)
    spec = replace(trial.spec, output=str(place))
    if services is not None and spec.loader.runs_functions:
        loader = replace(spec.loader, coordinator=services.address)
        spec = replace(spec, executor="auto", loader=loader)
    spec.write(place / "spec.yaml")
    title = f"{turn.arm}, repeat {turn.repeat}" + (f", trial {trial.name}" if trial.name else "")
    return RunProcess(title, place / "spec.yaml", place / "output.txt", launch)


def _run_in(place: Path) -> Path:
    """Return the latest run's directory in ``place``, or ``place`` itself, which fails when read."""
    directories = sorted(entry for entry in place.iterdir() if (entry / "report.json").is_file())
    return directories[-1] if directories else place


def _failure(runs: Sequence[RunProcess], folder: Path) -> str:
    # Runs that were ended because of another are not at fault.
    failed = min((run for run in runs if run.code), key=lambda run: run.was_ended)
    code = failed.code or 0
    ending = f"signal {-code}" if code < 0 else f"exit code {code}"
    last_lines = failed.last_lines().replace("\n", "\n  ")
    return f"the run of {failed.title} ended with {ending}. The last lines of {folder}:\n  {last_lines}"


def _children_cpu_s() -> float:
    """Return the CPU seconds of all children that were waited for, and of their descendants."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class _SharedServices:
    """The services of one round, and samples of their CPU time."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.samples: list[CpuSample] = []
        coordinators = [child for child in psutil.Process().children() if _is_coordinator(child)]
        self._groups = ProcessGroups(coordinators[0]) if coordinators else None

    def sample(self) -> None:
        """Record the CPU time used so far."""
        if self._groups is None:
            return
        with contextlib.suppress(psutil.NoSuchProcess):  # killed from outside: earlier samples stay
            used = {name: reading.cpu_s for name, reading in self._groups.read().items()}
            # The root of these groups is the coordinator, not a trainer.
            used["coordinator"] = used.get("coordinator", 0.0) + used.pop("trainer", 0.0)
            self.samples.append((time.time(), used))


def _is_coordinator(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return "superdl.coordinator.embedded" in process.cmdline()
    return False


@contextlib.contextmanager
def _shared_services(spec: Spec) -> Iterator[_SharedServices]:
    """Start a round's services cold, keep them running as a training process would, then stop them."""
    from superdl.sampler.embedded.embedded import Embedded  # imports torch
    from superdl.sampler.embedded.settings import EmbeddedSettings

    with embedded_executor(spec):
        settings = replace(EmbeddedSettings.of_this_host(), grace_s=_GRACE_S)
        held = Embedded(f"compare:{uuid.uuid4().hex}", settings)
    try:
        services = _SharedServices(held.coordinator)
        services.sample()
        yield services
        services.sample()
    finally:
        held.release()
