"""Processes of a benchmark: one for each measurement, its CPU seconds, and the cores that it may use.

A measurement has a process to itself so that its CPU, its memory and its imports are its own:
``python -m benchmarks.processes MODULE FUNCTION ARGUMENT`` calls a function of this folder. Argument and
result are dataclasses of plain values, which travel as JSON.

The kernel's CPU clock of a process is read: nanoseconds, over all its threads, ended ones too.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_type_hints

import psutil
from pydantic import TypeAdapter

from superdl.super_wire.errors import SuperError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

__all__ = [
    "ALONE_S",
    "ROOT",
    "BenchmarkError",
    "Pids",
    "children_cpu_s",
    "cpu_s_each",
    "descendants_cpu_s",
    "held_to",
    "process_cpu_s",
    "run_child",
    "said_by",
    "usable_cores",
]

ROOT = Path(__file__).resolve().parents[1]
_TIME_LIMIT_S = 1800.0

_Argument = TypeVar("_Argument")
_Result = TypeVar("_Result")

_WHOLE_PROCESS = 2
"""CPUCLOCK_SCHED of the kernel: user and system time of all threads."""

ALONE_S = 2.0  # how long work is measured alone


class BenchmarkError(SuperError):
    """A measurement could not be made, or measured something else than it says."""


def run_child(
    function: Callable[[_Argument], _Result],
    argument: _Argument,
    *,
    name: str,
    environment: Mapping[str, str] | None = None,
) -> _Result:
    """Call ``function`` in a fresh process; its result comes back.

    Args:
        function: one of a module of this folder, with annotations that can be evaluated.
        argument: a dataclass.
        name: for messages.
        environment: over this process's own.

    Raises:
        BenchmarkError: it failed or took too long; the message has what it said.

    """
    words = (function.__module__, function.__name__, json.dumps(asdict(cast("Any", argument))))
    said = said_by(["-m", "benchmarks.processes", *words], environment, name=name)
    result: TypeAdapter[_Result] = TypeAdapter(get_type_hints(function)["return"])
    return result.validate_json(said.splitlines()[-1])  # loaders of others may print before it


def said_by(words: Sequence[str], environment: Mapping[str, str] | None = None, *, name: str) -> str:
    """What a fresh Python prints that is called with these words; else as :func:`run_child`."""
    try:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
            capture_output=True,
            text=True,
            timeout=_TIME_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise BenchmarkError(f"{name} was not done after {_TIME_LIMIT_S:g} s") from None
    if done.returncode != 0:
        raise BenchmarkError(f"{name} failed with exit code {done.returncode}:\n{done.stderr.strip()}")
    return done.stdout


# ---------------------------------------------------------------------------------------- CPU and cores


def process_cpu_s(pid: int) -> float:
    """User and system CPU seconds of one live process.

    Raises:
        ProcessLookupError: there is no such process.

    """
    try:
        # What glibc's clock_getcpuclockid computes; Python has no name for it.
        return time.clock_gettime((~pid << 3) | _WHOLE_PROCESS)
    except OSError as error:
        raise ProcessLookupError(f"there is no process {pid}") from error


def descendants_cpu_s(pid: int) -> float:
    """CPU seconds of the live descendants of a process, itself left out."""
    total_s = 0.0
    try:
        descendants = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess as error:
        raise ProcessLookupError(f"there is no process {pid}") from error
    for child in descendants:
        # One that has just ended is in its parent's account once it is reaped.
        with contextlib.suppress(ProcessLookupError):
            total_s += process_cpu_s(child.pid)
    return total_s


def children_cpu_s() -> float:
    """CPU seconds of this process's descendants: those that live and those that were waited for."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime + descendants_cpu_s(os.getpid())


@dataclass(frozen=True, slots=True)
class Pids:
    """The processes of a trainer's services, whose children are the functions; 0 where one does not run."""

    coordinator: int = 0
    cache: int = 0
    store: int = 0

    def cpu_s(self) -> dict[str, float]:
        """CPU seconds until now of each of them, and of the functions."""
        one_by_one = {"coordinator": self.coordinator, "cache": self.cache, "store": self.store}
        return {
            **{f"{name}_cpu_s": process_cpu_s(pid) if pid else 0.0 for name, pid in one_by_one.items()},
            "functions_cpu_s": descendants_cpu_s(self.coordinator) if self.coordinator else 0.0,
        }


def cpu_s_each(work: Callable[[], object]) -> float:
    """CPU seconds of one call: other processes of the machine do not count."""
    began_s = time.perf_counter()
    cpu_s = time.process_time()
    count = 0
    while time.perf_counter() - began_s < ALONE_S:
        work()
        count += 1
    return (time.process_time() - cpu_s) / count


def usable_cores(least: int, why: str) -> list[int]:
    """The cores that this process may use.

    Raises:
        BenchmarkError: there are fewer than ``least``.

    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < least:
        raise BenchmarkError(f"{why}, so it needs {least} at least; {len(cores)} can be had here")
    return cores


@contextlib.contextmanager
def held_to(cores: Sequence[int]) -> Iterator[None]:
    """Hold this thread, and what it starts meanwhile, to these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _main(module: str, name: str, argument: str) -> None:
    function = getattr(import_module(module), name)
    (kind,) = (hint for name, hint in get_type_hints(function).items() if name != "return")
    result = function(TypeAdapter(kind).validate_json(argument))
    print(json.dumps(None if result is None else asdict(result)))


if __name__ == "__main__":
    _main(*sys.argv[1:])
