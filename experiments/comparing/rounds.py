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
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import psutil
import yaml

from superdl.experiments.comparing.measured import RoundMeasured, RunMeasured, read_measured_run
from superdl.experiments.comparing.processes import EndedRun, RunRequest, run_together
from superdl.experiments.monitoring.readings import ProcessGroups
from superdl.experiments.run.training_run import embedded_executor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from superdl.experiments.comparing.arms import Arm, Round, Trial
    from superdl.experiments.comparing.measured import CpuSample
    from superdl.experiments.spec import Spec

__all__ = ["RoundDone", "run_round", "write_pages"]

_GRACE_S = 0.1
"""Nobody comes back after the last trial."""


@dataclass(frozen=True, slots=True)
class RoundDone:
    """A round that was carried out: what it measured, or, where a run of it failed, how its runs ended."""

    round: Round
    folder: Path
    ended: tuple[EndedRun, ...]
    measured: RoundMeasured | None

    @property
    def failed(self) -> tuple[EndedRun, ...]:
        """The runs that failed, without those that were ended because of them."""
        unfinished = [run for run in self.ended if not run.is_finished]
        return tuple(run for run in unfinished if not run.was_told_to) or tuple(unfinished)


def run_round(one: Round, arm: Arm, folder: Path) -> RoundDone:
    """Run every trial of ``arm`` at once, below ``folder``, and read what they have left.

    Raises:
        SuperError: what the trials share cannot be started, or a run left no report.
        KeyboardInterrupt: a person ended it; the runs have written their reports.

    """
    before_s = _children_cpu_s()
    with contextlib.ExitStack() as stack:
        start_s = time.monotonic()
        services = None
        if arm.sharing is not None and not os.environ.get("SUPER_COORDINATOR"):
            services = stack.enter_context(_shared_services(arm.sharing))
        requests = [_request(trial, folder, one, services) for trial in arm.trials]
        begun_s = time.monotonic() - start_s
        ended = run_together(requests, services.sample if services else lambda: None)
    cpu_s = _children_cpu_s() - before_s  # when all has ended, what was shared too
    measured = None
    if all(run.is_finished for run in ended):
        measured = RoundMeasured(
            arm=arm.name,
            repeat=one.repeat,
            runs=tuple(_read(request.output.parent) for request in requests),
            wall_s=begun_s + max(run.wall_s for run in ended),
            cpu_s=cpu_s,
            services=tuple(services.samples) if services else (),
            services_start_s=begun_s if services else 0.0,
        )
    return RoundDone(one, folder, ended, measured)


def write_pages(folder: Path, tell: Callable[[str], None]) -> None:
    """Make the pages of a round's runs, once nothing is timed any more; ``tell`` hears of one that fails."""
    from superdl.experiments.reporting.run_page import write_run_page

    for report in sorted(folder.rglob("report.json")):
        try:
            write_run_page(report.parent)
        except Exception as error:  # noqa: BLE001  # whatever drawing raises, the figures matter more
            tell(f"the page of {report.parent} was not made ({error}); superdl report tries again")


def _request(trial: Trial, folder: Path, one: Round, services: _SharedServices | None) -> RunRequest:
    """Write the trial's spec, whole, so that ``superdl run`` repeats it."""
    place = folder / trial.name if trial.name else folder
    place.mkdir(parents=True)
    spec = replace(trial.spec, output=str(place))
    if services is not None and spec.loader.runs_functions:
        loader = replace(spec.loader, coordinator=services.address)
        spec = replace(spec, executor="auto", loader=loader)
    file = place / "spec.yaml"
    file.write_text(yaml.safe_dump(spec.to_mapping(), sort_keys=False), encoding="utf-8")
    title = f"{one.arm}, repeat {one.repeat}" + (f", trial {trial.name}" if trial.name else "")
    return RunRequest(title, file, place / "output.txt")


def _read(place: Path) -> RunMeasured:
    """The run whose directory is the one in ``place``."""
    directories = sorted(entry for entry in place.iterdir() if (entry / "report.json").is_file())
    return read_measured_run(directories[-1] if directories else place)


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
            groups = self._groups.read()
            used = {name: reading.cpu_s for name, reading in groups.items()}
            used["supervisor"] = used.get("supervisor", 0.0) + used.pop("trainer", 0.0)
            self.samples.append((time.time(), used))


@contextlib.contextmanager
def _shared_services(spec: Spec) -> Iterator[_SharedServices]:
    """Start them as the spec's executor wants them; when the block ends, they have ended.

    Raises:
        EmbeddedError: they do not start.
        ConfigError: a variable is wrong, or one is missing that the executor needs.

    """
    from superdl.sampler.embedded.embedded import (
        Embedded,  # torch comes with it: not for a comparison that needs none
    )
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
