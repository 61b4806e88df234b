"""Waiting for the first of several things."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

__all__ = ["race"]

_T = TypeVar("_T")


async def race(*ways: Coroutine[Any, Any, _T]) -> _T:
    """The result of the first to end, or its error; of several at once, of the first named. The others are
    cancelled and waited for.
    """
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(way) for way in ways]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        first = next(task for task in tasks if task.done())
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return first.result()
