"""CPU seconds of processes: this one, its children, and any other by its id.

On Linux a process's CPU clock (``clock_getcpuclockid``) is read, in nanoseconds and over all its threads,
ended ones too. Elsewhere psutil's figures serve, whose steps of 10 ms need longer measurements. What is done
between two readings is the callers' matter.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import resource
import time
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["children_cpu_s", "descendants_cpu_s", "process_cpu_s"]


def process_cpu_s(pid: int) -> float:
    """User and system CPU seconds of one live process.

    Raises:
        ProcessLookupError: there is no such process.

    """
    clock_of = _clock_lookup()
    if clock_of is None:
        return _coarse_cpu_s(pid)
    clock = ctypes.c_int()
    if clock_of(pid, ctypes.byref(clock)) != 0:
        raise ProcessLookupError(f"there is no process {pid}")
    try:
        return time.clock_gettime(clock.value)
    except OSError as error:  # it ended between the two calls
        raise ProcessLookupError(f"there is no process {pid} any more") from error


def descendants_cpu_s(pid: int) -> float:
    """CPU seconds of the live descendants of a process, itself left out."""
    total_s = 0.0
    try:
        descendants = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess as error:
        raise ProcessLookupError(f"there is no process {pid}") from error
    for child in descendants:
        with contextlib.suppress(
            ProcessLookupError
        ):  # it has just ended; its parent's account has it once it is reaped
            total_s += process_cpu_s(child.pid)
    return total_s


def children_cpu_s() -> float:
    """CPU seconds of this process's descendants: those that live and those that were waited for."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime + descendants_cpu_s(psutil.Process().pid)


@functools.cache
def _clock_lookup() -> Callable[..., int] | None:
    return getattr(ctypes.CDLL(None), "clock_getcpuclockid", None)


def _coarse_cpu_s(pid: int) -> float:
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.NoSuchProcess as error:
        raise ProcessLookupError(f"there is no process {pid}") from error
    return float(times.user + times.system)
