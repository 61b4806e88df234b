"""Carries a comparison out, round by round, and keeps on disk what is known after each.

A directory holds all of it: ``spec.yaml``, ``runs/`` with a folder for each round, and what `comparison` and
`show` write. One round is left to `rounds`.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from superdl.experiments.comparing.arms import Arm, Round, arms_of, rounds_of
from superdl.experiments.comparing.comparison import (
    ArmReport,
    Comparison,
    RoundReport,
    settings_of,
    write_comparison,
)
from superdl.experiments.comparing.figures import round_figures
from superdl.experiments.comparing.rounds import RoundDone, run_round, write_pages
from superdl.experiments.comparing.show import comparison_page, print_comparison
from superdl.experiments.data import prepare_data
from superdl.experiments.manifest import Manifest, describe_environment, describe_hardware
from superdl.experiments.output import new_directory
from superdl.experiments.reporting.page import PAGE_NAME, write_page
from superdl.experiments.training.device import pick_device
from superdl.super_wire.errors import SuperError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console

    from superdl.experiments.spec import Spec

__all__ = ["ComparisonFailedError", "compare", "publish"]


class ComparisonFailedError(SuperError):
    """A run of a comparison failed; names it, with the last lines that it printed."""


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
    device = pick_device(spec.device)
    state = _State(spec, chosen, new_directory(spec.output, f"{spec.name}-compare"))
    text = yaml.safe_dump(spec.to_mapping(), sort_keys=False)
    (state.directory / "spec.yaml").write_text(text, encoding="utf-8")
    manifest = Manifest(state.directory, spec, device, started_at=state.started_at)
    state.environment = describe_environment(device) | {"cpu": describe_hardware()["cpu"]}
    _say(console, f"comparing {', '.join(arm.name for arm in chosen)}; written to {state.directory}")
    try:
        _prepare(chosen, console)
        _run_all(state, console, keep_going=keep_going)
    except BaseException as error:
        state.status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        state.reason = f"{type(error).__name__}: {error}".removesuffix(": ")
        raise
    finally:
        report = state.report()
        publish(report, console)
        manifest.end(state.status, _now())
    return report


def publish(report: Comparison, console: Console) -> None:
    """Write all that people and programs read of a comparison into its directory, and print it."""
    directory = Path(report.directory)
    write_comparison(report, directory)
    write_page(comparison_page(report), directory / PAGE_NAME)
    print_comparison(report, console)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass
class _State:
    """What is known so far."""

    spec: Spec
    arms: tuple[Arm, ...]
    directory: Path
    started_at: str = field(default_factory=_now)
    start_s: float = field(default_factory=time.monotonic)
    status: str = "running"
    reason: str | None = None
    rounds: list[RoundReport] = field(default_factory=list)
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)

    def take(self, one: Round, done: RoundDone) -> RoundReport:
        """Keep what a round has measured."""
        folder = str(done.folder.relative_to(self.directory))
        if done.measured is None:
            report = RoundReport(one, folder, None, _failure(done))
        else:
            first = done.measured.runs[0]
            self.settings.setdefault(one.arm, settings_of(first))
            figures = round_figures(done.measured, self.spec.compare.warmup_epochs)
            report = RoundReport(one, folder, figures, None)
        self.rounds.append(report)
        return report

    def report(self) -> Comparison:
        return Comparison(
            name=self.spec.name,
            status=self.status,
            reason=self.reason,
            started_at=self.started_at,
            took_s=time.monotonic() - self.start_s,
            directory=str(self.directory),
            repeats=self.spec.compare.repeats,
            warmup_epochs=self.spec.compare.warmup_epochs,
            arms=tuple(
                ArmReport(
                    arm.name,
                    arm.values,
                    tuple(trial.name for trial in arm.trials if trial.name),
                    self.settings.get(arm.name, {}),
                )
                for arm in self.arms
            ),
            rounds=tuple(self.rounds),
            notes=_notes(self.arms),
            spec=self.spec.to_mapping(),
            environment=self.environment,
        )


def _run_all(state: _State, console: Console, *, keep_going: bool) -> None:
    by_name = {arm.name: arm for arm in state.arms}
    rounds = rounds_of(list(by_name), state.spec.compare.repeats)
    for one in rounds:
        arm = by_name[one.arm]
        at_once = f", {len(arm.trials)} trials at once" if len(arm.trials) > 1 else ""
        place = f"[{one.number}/{len(rounds)}]"
        _say(console, f"{place} {one.arm}, repeat {one.repeat} of {state.spec.compare.repeats}{at_once}")
        done = run_round(one, arm, state.directory / "runs" / f"{one.number:02d}-{one.arm}")
        if len(arm.trials) == 1:  # of many at once nobody wants every page, and each takes a second
            write_pages(done.folder, lambda line: _say(console, line))
        report = state.take(one, done)
        _say(console, f"{place} {report.phrase()}")
        if report.failure is not None and not keep_going:
            raise ComparisonFailedError(report.failure)
        write_comparison(state.report(), state.directory)
    failed = sum(one.failure is not None for one in state.rounds)
    state.status = "failed" if failed else "finished"
    state.reason = f"{failed} of {len(rounds)} rounds failed" if failed else None


def _failure(done: RoundDone) -> str:
    first = done.failed[0]
    how = f"signal {-first.code}" if first.code < 0 else f"exit code {first.code}"
    said = first.last_lines.replace("\n", "\n  ")
    return f"the run of {first.title} ended with {how}; the last lines of {done.folder}:\n  {said}"


def _prepare(arms: Sequence[Arm], console: Console) -> None:
    """Write or find the data before anything is timed, so that no run pays for it."""
    for data in {trial.spec.data: None for arm in arms for trial in arm.trials}:
        prepare_data(data, lambda line: _say(console, line))


def _notes(arms: Sequence[Arm]) -> tuple[str, ...]:
    """What a reader must know of how the arms ran."""
    return tuple(note for arm in arms for note in _notes_of(arm))


def _notes_of(arm: Arm) -> Iterator[str]:
    functions = [trial.spec for trial in arm.trials if trial.spec.loader.runs_functions]
    variable = os.environ.get("SUPER_COORDINATOR")
    addresses = {spec.loader.coordinator or variable for spec in functions}
    for address in sorted(address for address in addresses if address):
        yield (
            f"{arm.name} uses the coordinator at {address}: its CPU, and that of its cache and functions, is "
            "not counted, and its cache holds what earlier runs left."
        )
    elsewhere = sorted({spec.executor for spec in functions} - {"auto", "local"})
    if elsewhere:
        yield f"{arm.name} runs functions by {', '.join(elsewhere)}: their CPU is not counted."


def _say(console: Console, line: str) -> None:
    console.print(line, highlight=False, markup=False, soft_wrap=True)
