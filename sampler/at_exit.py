"""What samplers that were not closed still do when the interpreter exits: end their threads, say goodbye.

A coordinator that others share would else keep their jobs for as long as a vanished job is remembered. It is
a courtesy, so it is tried once, and all goodbyes together take at most a second. A forked child, which may
run the handlers that its parent registered, says nothing. How a job is closed is
:mod:`superdl.sampler.session`'s.
"""

from __future__ import annotations

import atexit
import logging
import os
import time
import weakref
from typing import TYPE_CHECKING, Protocol

from superdl.sampler.rpc.client import Client, Patience
from superdl.super_wire.errors import SuperError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["OPEN_JOBS", "OpenJobs", "Stoppable", "stop_at_exit"]

_LOG = logging.getLogger(__name__)

TOTAL_S = 1.0


class Stoppable(Protocol):
    """Who has a thread that must not be inside grpc while the interpreter goes down."""

    pid: int
    """Of the process that the thread runs in."""

    def stop(self) -> None:
        """End the thread, within a bounded wait."""


class OpenJobs:
    """Jobs that are open, and what is to be said of each if nobody closes it."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str, int], int] = {}

    def add(self, address: str, job: str, rank: int) -> None:
        """This rank of a job is open at the coordinator at ``address``."""
        self._open[address, job, rank] = os.getpid()

    def discard(self, address: str, job: str, rank: int) -> None:
        """It was closed."""
        self._open.pop((address, job, rank), None)

    def say(self, total_s: float = TOTAL_S, client: Callable[[str], Client] = Client) -> None:
        """Close what this process has open; a coordinator that does not answer is not asked again."""
        if not self._open:
            return
        from superdl.super_wire import coordinator_pb2 as pb

        until_s = time.monotonic() + total_s
        deaf: set[str] = set()
        for (address, job, rank), pid in list(self._open.items()):
            left_s = until_s - time.monotonic()
            if pid != os.getpid() or address in deaf or left_s <= 0:
                continue
            once = Patience(attempts=1, total_s=left_s, deadline_s=left_s, backoff_s=0.0)
            try:
                client(address).call("CloseJob", pb.CloseJobRequest(job=job, rank=rank), once)
            except SuperError as error:
                _LOG.debug("job %s could not be closed at exit: %s", job, error)
                deaf.add(address)
        self._open.clear()


OPEN_JOBS = OpenJobs()
_STOPPABLE: weakref.WeakSet[Stoppable] = weakref.WeakSet()


def stop_at_exit(member: Stoppable) -> None:
    """Stop ``member`` when the interpreter exits, if it is still alive then."""
    _STOPPABLE.add(member)


@atexit.register
def _leave() -> None:
    # First the threads: one that is inside grpc can abort the process, and would open its job again.
    for member in [member for member in _STOPPABLE if member.pid == os.getpid()]:
        member.stop()
    OPEN_JOBS.say()
