"""Whether other processes live, and waiting for what they do."""

import asyncio
import os

WAIT_S = 60.0


def alive(pid):
    """Whether a process exists; 0 is none."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return bool(pid)


async def until(condition):
    """Wait, bounded, for what another process does."""
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110  # other processes cannot set an event of ours
            await asyncio.sleep(0.01)
