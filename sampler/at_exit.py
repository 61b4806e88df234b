"""What samplers that were not closed still do when the interpreter exits: end their threads, say goodbye.

A coordinator that others share would else keep their jobs for as long as a vanished job is remembered. It is
a courtesy: tried once, in at most a second for all. A forked child says nothing.
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

__all__ = ["OPEN_JOBS", "STOPPED_AT_EXIT", "OpenJobs"]

_LOG = logging.getLogger(__name__)

TOTAL_S = 1.0


class _Stoppable(Protocol):
    pid: int

    def stop(self) -> None: ...


class OpenJobs:
    """Jobs that are open, by coordinator, job and rank, and the process that opened them."""

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
STOPPED_AT_EXIT: weakref.WeakSet[_Stoppable] = weakref.WeakSet()


@atexit.register
def _leave() -> None:
    # First the threads: one that is inside grpc can abort the process, and would open its job again.
    for member in [member for member in STOPPED_AT_EXIT if member.pid == os.getpid()]:
        member.stop()
    OPEN_JOBS.say()
