"""Check whether other processes are alive, and wait for what they do."""

import asyncio
import contextlib
import os

import psutil

WAIT_S = 60.0


def alive(pid):
    """Return whether a process exists. A pid of 0 means none."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return bool(pid)


def children_running(module, parent=None):
    """Return the pids of a process's children with this name, or that run this Python module."""
    children = psutil.Process(parent).children() if alive(parent or os.getpid()) else []
    return [child.pid for child in children if module in _words_of(child)]


def _words_of(process):
    with contextlib.suppress(psutil.Error):
        return [process.name(), *process.cmdline()]
    return []


async def until(condition):
    """Wait, for a bounded time, for a condition that another process brings about."""
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110  # other processes cannot set our events
            await asyncio.sleep(0.01)
