"""CPU seconds of processes, and which cores a process may use.

On Linux the kernel's CPU clock of a process is read: nanoseconds, over all its threads, ended ones too.
Elsewhere psutil's figures serve; their steps of 10 ms need longer measurements.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

from benchmarks.child import BenchmarkError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = [
    "Cores",
    "children_cpu_s",
    "cpu_s_each",
    "descendants_cpu_s",
    "held_to",
    "process_cpu_s",
    "usable_cores",
]

_WHOLE_PROCESS = 2
"""CPUCLOCK_SCHED of the kernel: user and system time of all threads."""

_ALONE_S = 2.0  # how long work is measured alone


def process_cpu_s(pid: int) -> float:
    """User and system CPU seconds of one live process.

    Raises:
        ProcessLookupError: there is no such process.

    """
    try:
        if sys.platform == "linux":
            # What glibc's clock_getcpuclockid computes; Python has no name for it.
            return time.clock_gettime((~pid << 3) | _WHOLE_PROCESS)
        times = psutil.Process(pid).cpu_times()
    except (OSError, psutil.NoSuchProcess) as error:
        raise ProcessLookupError(f"there is no process {pid}") from error
    return float(times.user + times.system)


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


def cpu_s_each(work: Callable[[], object]) -> float:
    """CPU seconds of one call: other processes of the machine do not count."""
    began_s = time.perf_counter()
    cpu_s = time.process_time()
    count = 0
    while time.perf_counter() - began_s < _ALONE_S:
        work()
        count += 1
    return (time.process_time() - cpu_s) / count


def usable_cores(least: int, why: str) -> list[int]:
    """The cores that this process may use.

    Raises:
        BenchmarkError: there are fewer than ``least``, or this system holds no process to cores.

    """
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if len(cores) < least:
        raise BenchmarkError(
            f"{why}, so it needs {least} at least; {len(cores)} can be had here (it runs on Linux only)"
        )
    return cores


@dataclass(frozen=True, slots=True)
class Cores:
    """The trainer's cores, and the others."""

    trainer: list[int]
    others: list[int]

    @classmethod
    def split(cls, for_trainer: int) -> Cores:
        """This process's cores, so many of them for the trainer.

        Raises:
            BenchmarkError: none is left for the others.

        """
        why = f"this benchmark holds the trainer to {for_trainer} of the cores and functions to the others"
        usable = usable_cores(for_trainer + 1, why)
        return cls(usable[:for_trainer], usable[for_trainer:])


@contextlib.contextmanager
def held_to(cores: Sequence[int]) -> Iterator[None]:
    """Hold this thread, and what it starts meanwhile, to these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
