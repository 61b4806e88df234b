"""Check whether other processes are alive, and wait for what they do."""

import asyncio
import os

WAIT_S = 60.0


def alive(pid):
    """Return whether a process exists. A pid of 0 means none."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return bool(pid)


async def until(condition):
    """Wait, for a bounded time, for a condition that another process brings about."""
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110  # other processes cannot set our events
            await asyncio.sleep(0.01)
