"""Ending asyncio tasks for certain: a cancellation can be lost on its way.

A client library that is cancelled while it closes a broken connection, or while a timeout of its own runs
out, may swallow the cancellation or turn it into an error of its own (seen with redis-py 8 on Python 3.11).
"""

from __future__ import annotations

import asyncio
from typing import Any

__all__ = ["cancel_and_wait"]

_AGAIN_S = 0.5


async def cancel_and_wait(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks, again and again until they have ended; what they ended with is not looked at."""
    while waiting := [task for task in tasks if not task.done()]:
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting, timeout=_AGAIN_S)
    await asyncio.gather(*tasks, return_exceptions=True)
