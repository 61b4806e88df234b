"""What ends a coordinator besides signals: its standard input closes, or its holders go."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

__all__ = ["Holders", "watch_stdin"]

_STDIN = 0


class Holders(Protocol):
    """The processes for which a coordinator runs."""

    def begin(self, stop: Callable[[], None]) -> None:
        """Begin, in the running event loop; call ``stop`` when no process holds it any more."""

    def serving(self) -> None:
        """Note that the coordinator serves."""


def watch_stdin(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    """Set ``stop`` when the process at the other end of stdin ends, in whatever way."""

    def readable() -> None:
        try:
            ended = not os.read(_STDIN, 4096)
        except OSError:  # the terminal is gone
            ended = True
        if ended:
            loop.remove_reader(_STDIN)
            stop.set()

    try:
        loop.add_reader(_STDIN, readable)
    except OSError as error:
        raise ConfigError(f"exit_with_stdin needs a pipe or a terminal as standard input: {error}") from error
