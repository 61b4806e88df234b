"""Processes of a benchmark: a fresh one per measurement, its CPU seconds and its cores."""

from __future__ import annotations

import contextlib
import os
import resource
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import psutil

from superdl.super_wire.errors import SuperError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

ROOT = Path(__file__).resolve().parents[2]

_Argument = TypeVar("_Argument")
_Result = TypeVar("_Result")

# CPUCLOCK_SCHED of the kernel: user and system time of all threads, including ended ones.
_WHOLE_PROCESS = 2

_ALONE_S = 2.0  # seconds for which work is measured alone


class BenchmarkError(SuperError):
    """A measurement could not be made, or measured something else than intended."""


def run_child(
    function: Callable[[_Argument], _Result],
    argument: _Argument,
    *,
    name: str,
    environment: Mapping[str, str] | None = None,
) -> _Result:
    """Call ``function`` in a fresh process and return its result.

    Args:
        function: defined at the top level of a module.
        argument: pickled, as is the result.
        name: for messages.
        environment: overrides this process's own.

    Raises:
        BenchmarkError: it failed; a ``SuperError`` propagates unchanged.
    """
    variables = {**os.environ, **(environment or {})}
    try:
        # Spawned, so that memory and imports are its own.
        with ProcessPoolExecutor(1, get_context("spawn"), _prepare, (variables,)) as pool:
            return pool.submit(function, argument).result()
    except SuperError:
        raise
    except Exception as error:
        raise BenchmarkError(f"{name} failed: {type(error).__name__}: {error}") from error


def _prepare(variables: dict[str, str]) -> None:
    os.environ.update(variables)
    os.dup2(2, 1)  # other loaders print, and standard output is for the report


# ---------------------------------------------------------------------------------------- CPU and cores


def process_cpu_s(pid: int) -> float:
    """Return the user and system CPU seconds of one live process."""
    try:
        # As computed by glibc's clock_getcpuclockid; Python has no name for it.
        return time.clock_gettime((~pid << 3) | _WHOLE_PROCESS)
    except OSError as error:
        raise ProcessLookupError(f"there is no process {pid}") from error


def descendants_cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process's live descendants, without its own."""
    total_s = 0.0
    try:
        descendants = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess as error:
        raise ProcessLookupError(f"there is no process {pid}") from error
    for child in descendants:
        # A process that has just ended is in its parent's account once it is reaped.
        with contextlib.suppress(ProcessLookupError):
            total_s += process_cpu_s(child.pid)
    return total_s


def children_cpu_s() -> float:
    """Return the CPU seconds of this process's descendants, live or waited for."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime + descendants_cpu_s(os.getpid())


@dataclass(frozen=True, slots=True)
class Pids:
    """The processes of a trainer's services, parents of the functions; 0 if not running."""

    coordinator: int = 0
    cache: int = 0
    store: int = 0

    def cpu_s(self) -> dict[str, float]:
        """Return the CPU seconds so far of each service, and of the functions."""
        one_by_one = {"coordinator": self.coordinator, "cache": self.cache, "store": self.store}
        return {
            **{f"{name}_cpu_s": process_cpu_s(pid) if pid else 0.0 for name, pid in one_by_one.items()},
            "functions_cpu_s": descendants_cpu_s(self.coordinator) if self.coordinator else 0.0,
        }


def seconds_each(work: Callable[[], object], clock: Callable[[], float]) -> float:
    """Return the seconds per call by a clock, over calls that take two seconds."""
    until_s = time.perf_counter() + _ALONE_S
    began_s, count = clock(), 0
    while time.perf_counter() < until_s:
        work()
        count += 1
    return (clock() - began_s) / count


def usable_cores(least: int, why: str) -> list[int]:
    """Return the cores that this process may use."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < least:
        raise BenchmarkError(f"{why}, so it needs {least} at least; {len(cores)} can be had here")
    return cores


@contextlib.contextmanager
def held_to(cores: Sequence[int]) -> Iterator[None]:
    """Pin this thread, and anything it starts meanwhile, to these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
