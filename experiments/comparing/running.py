"""Carries a comparison out, round by round, and keeps on disk what is known after each.

A directory holds all of it: ``spec.yaml``, ``runs/`` with a folder for each round, and what `comparison` and
`show` write. One round is left to `rounds`.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from superdl.experiments.comparing.arms import Arm, arms_of, rounds_of
from superdl.experiments.comparing.comparison import ArmReport, Comparison, RoundReport, write_comparison
from superdl.experiments.comparing.figures import round_figures
from superdl.experiments.comparing.rounds import ComparisonFailedError, run_round
from superdl.experiments.comparing.show import comparison_page, print_comparison
from superdl.experiments.data import prepare_data
from superdl.experiments.manifest import Manifest, describe_environment, describe_hardware
from superdl.experiments.output import new_directory, now_text, write_whole
from superdl.experiments.reporting.page import PAGE_NAME
from superdl.experiments.reporting.run_page import write_run_page
from superdl.experiments.run.listeners import say
from superdl.experiments.training.device import pick_device

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console

    from superdl.experiments.spec import Spec

__all__ = ["compare", "publish"]


def compare(
    spec: Spec, *, arms: Sequence[str] | None = None, keep_going: bool = False, console: Console
) -> Comparison:
    """Run the arms of ``spec`` interleaved, print and write what they come to, and return it.

    The report is written after each round and at the end, however that comes.

    Args:
        spec: what is compared; its ``compare`` section says how.
        arms: names of the arms; None: all.
        keep_going: go on after a run failed, without its figures.
        console: for progress and tables.

    Raises:
        ConfigError: an arm or a trial makes a spec that is not allowed; nothing has run.
        ComparisonFailedError: a run failed, and ``keep_going`` is false.
        SuperError: the data or what trials share cannot be had.
        KeyboardInterrupt: the user ended it.

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
    manifest, start_s = Manifest(directory, spec, device, started_at=report.started_at), time.monotonic()
    say(console, f"comparing {', '.join(arm.name for arm in chosen)}; written to {directory}")
    try:
        for data in {trial.spec.data: None for arm in chosen for trial in arm.trials}:  # nothing is timed yet
            prepare_data(data, lambda line: say(console, line))
        _run_all(report, chosen, console, keep_going=keep_going)
    except BaseException as error:
        report.status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        report.reason = f"{type(error).__name__}: {error}".removesuffix(": ")
        raise
    finally:
        report.took_s = time.monotonic() - start_s
        publish(report, console)
        manifest.end(report.status, now_text())
    return report


def publish(report: Comparison, console: Console) -> None:
    """Write all that people and programs read of a comparison into its directory, and print it."""
    directory = Path(report.directory)
    write_comparison(report, directory)
    write_whole(comparison_page(report), directory / PAGE_NAME)
    print_comparison(report, console)


def _run_all(report: Comparison, arms: Sequence[Arm], console: Console, *, keep_going: bool) -> None:
    rounds, directory = rounds_of([arm.name for arm in arms], report.repeats), Path(report.directory)
    for one in rounds:
        arm, of_arm = next(pair for pair in zip(arms, report.arms, strict=True) if pair[0].name == one.arm)
        at_once = f", {len(arm.trials)} trials at once" if len(arm.trials) > 1 else ""
        place, folder = f"[{one.number}/{len(rounds)}]", Path("runs", f"{one.number:02d}-{one.arm}")
        say(console, f"{place} {one.arm}, repeat {one.repeat} of {report.repeats}{at_once}")
        try:
            measured = run_round(one, arm, directory / folder)
        except ComparisonFailedError as error:
            report.rounds.append(RoundReport(*one, str(folder), None, str(error)))
            if not keep_going:
                raise
        else:
            of_arm.settings = of_arm.settings or measured.runs[0].report["loader_settings"]
            figures = round_figures(measured, report.warmup_epochs)
            report.rounds.append(RoundReport(*one, str(folder), figures))
        if len(arm.trials) == 1:  # of many at once nobody wants every page, and each takes a second
            _write_pages(directory / folder, console)
        say(console, f"{place} {report.rounds[-1].phrase()}")
        write_comparison(report, directory)
    failed = len(rounds) - report.measured
    report.status = "failed" if failed else "finished"
    report.reason = f"{failed} of {len(rounds)} rounds failed" if failed else None


def _write_pages(folder: Path, console: Console) -> None:
    """Make the pages of a round's runs, now that nothing is timed."""
    for path in sorted(folder.rglob("report.json")):
        try:
            write_run_page(path.parent)
        except Exception as error:  # noqa: BLE001  # whatever drawing raises, the figures matter more
            say(console, f"the page of {path.parent} was not made ({error}); superdl report tries again")


def _notes(arm: Arm) -> Iterator[str]:
    """What a reader must know of how an arm ran."""
    functions = [trial.spec for trial in arm.trials if trial.spec.loader.runs_functions]
    variable = os.environ.get("SUPER_COORDINATOR")
    for address in sorted({spec.loader.coordinator or variable or "" for spec in functions} - {""}):
        yield (
            f"{arm.name} uses the coordinator at {address}: its CPU, and that of its cache and functions, is "
            "not counted, and its cache holds what earlier runs left."
        )
    elsewhere = sorted({spec.executor for spec in functions} - {"auto", "local"})
    if elsewhere:
        yield f"{arm.name} runs functions by {', '.join(elsewhere)}: their CPU is not counted."
