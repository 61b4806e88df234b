"""Carries one round out: an arm's runs in processes of their own, with what they share, and measures them.

What the trials of an arm share for a round is the embedded default: coordinator, cache and functions, started
cold and ended after. The comparison holds it as a training process does, and gives the trials its address.
"""

from __future__ import annotations

import contextlib
import os
import resource
import time
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

import psutil

from superdl.experiments.comparing.measured import RoundMeasured, read_measured_run
from superdl.experiments.comparing.processes import RunProcess, run_together
from superdl.experiments.monitoring.readings import ProcessGroups
from superdl.experiments.run.training_run import embedded_executor
from superdl.super_wire.errors import SuperError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from superdl.experiments.comparing.arms import Arm, Round, Trial
    from superdl.experiments.comparing.measured import CpuSample
    from superdl.experiments.spec import Spec

__all__ = ["ComparisonFailedError", "run_round"]

_GRACE_S = 0.1
"""Nobody comes back after the last trial."""


class ComparisonFailedError(SuperError):
    """A run of a comparison failed; names it, with the last lines that it printed."""


def run_round(one: Round, arm: Arm, folder: Path) -> RoundMeasured:
    """Run every trial of ``arm`` at once, below ``folder``, and read what they have left.

    Raises:
        ComparisonFailedError: a run failed.
        SuperError: what the trials share cannot be started, or a run left no report.
        KeyboardInterrupt: a person ended it; the runs have written their reports.

    """
    before_s, begun_at_s = _children_cpu_s(), time.time()
    with contextlib.ExitStack() as stack:
        services = None
        if arm.sharing is not None and not os.environ.get("SUPER_COORDINATOR"):
            services = stack.enter_context(_shared_services(arm.sharing))
        runs = [_run_of(trial, folder, one, services) for trial in arm.trials]
        start_s = time.time() - begun_at_s
        run_together(runs, services.sample if services else lambda: None)
    cpu_s = _children_cpu_s() - before_s  # when all has ended, what was shared too
    if any(run.code for run in runs):
        raise ComparisonFailedError(_failure(runs, folder))
    places = [_run_in(run.output.parent) for run in runs]
    return RoundMeasured(
        runs=tuple(map(read_measured_run, places)),
        wall_s=max((place / "report.json").stat().st_mtime for place in places) - begun_at_s,
        cpu_s=cpu_s,
        services=tuple(services.samples) if services else (),
        services_start_s=start_s if services else 0.0,
    )


def _run_of(trial: Trial, folder: Path, one: Round, services: _SharedServices | None) -> RunProcess:
    """Write the trial's spec, whole, so that ``superdl run`` repeats it."""
    place = folder / trial.name if trial.name else folder
    place.mkdir(parents=True)
    spec = replace(trial.spec, output=str(place))
    if services is not None and spec.loader.runs_functions:
        loader = replace(spec.loader, coordinator=services.address)
        spec = replace(spec, executor="auto", loader=loader)
    file = place / "spec.yaml"
    spec.write(file)
    title = f"{one.arm}, repeat {one.repeat}" + (f", trial {trial.name}" if trial.name else "")
    return RunProcess(title, file, place / "output.txt")


def _run_in(place: Path) -> Path:
    """The directory of the run in ``place``; where there is none, reading it says so."""
    directories = sorted(entry for entry in place.iterdir() if (entry / "report.json").is_file())
    return directories[-1] if directories else place


def _failure(runs: Sequence[RunProcess], folder: Path) -> str:
    """Of the first that failed; one that was ended because of it has no fault."""
    first = min((run for run in runs if run.code), key=lambda run: run.was_told_to)
    code = first.code or 0
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    said = first.last_lines().replace("\n", "\n  ")
    return f"the run of {first.title} ended with {how}; the last lines of {folder}:\n  {said}"


def _children_cpu_s() -> float:
    """CPU time of all children that were waited for, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class _SharedServices:
    """The services of one round, and the CPU time that they have used."""

    def __init__(self, address: str, supervisor: psutil.Process | None) -> None:
        self.address = address
        self.samples: list[CpuSample] = []
        self._groups = None if supervisor is None else ProcessGroups(supervisor)

    def sample(self) -> None:
        """Look at what they have used by now."""
        if self._groups is None:
            return
        with contextlib.suppress(psutil.NoSuchProcess):  # killed by somebody: what was seen of it stays
            used = {name: reading.cpu_s for name, reading in self._groups.read().items()}
            used["supervisor"] = used.get("supervisor", 0.0) + used.pop("trainer", 0.0)
            self.samples.append((time.time(), used))


@contextlib.contextmanager
def _shared_services(spec: Spec) -> Iterator[_SharedServices]:
    """Start them as the spec's executor wants them; when the block ends, they have ended.

    Raises:
        EmbeddedError: they do not start.
        ConfigError: a variable is wrong, or one is missing that the executor needs.

    """
    from superdl.sampler.embedded.embedded import Embedded  # with torch: not for a comparison that needs none
    from superdl.sampler.embedded.supervisor_settings import SupervisorSettings

    with embedded_executor(spec):
        settings = replace(SupervisorSettings.of_this_host(), grace_s=_GRACE_S)
        held = Embedded(f"compare:{uuid.uuid4().hex}", settings)
    try:
        services = _SharedServices(held.coordinator, _supervisor())
        services.sample()
        yield services
        services.sample()
    finally:
        held.release()


def _supervisor() -> psutil.Process | None:
    """The supervisor that this process has started."""
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if "superdl.sampler.embedded.supervisor" in child.cmdline():
                return child
    return None
