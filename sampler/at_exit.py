"""Cleanup of open samplers when the interpreter exits: end threads, close jobs."""

from __future__ import annotations

import _thread
import atexit
import logging
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Protocol

from superdl.sampler.rpc.client import Client, Patience
from superdl.super_wire.errors import SuperError

if TYPE_CHECKING:
    from collections.abc import Callable

_LOG = logging.getLogger(__name__)

_TOTAL_S = 1.0


class _Stoppable(Protocol):
    pid: int

    def stop(self) -> None: ...


class _OpenJobs:
    def __init__(self) -> None:
        # The process that opened each job, by coordinator, job and rank. A forked child sends nothing.
        self._open: dict[tuple[str, str, int], int] = {}

    def add(self, address: str, job: str, rank: int) -> None:
        self._open[address, job, rank] = os.getpid()

    def discard(self, address: str, job: str, rank: int) -> None:
        self._open.pop((address, job, rank), None)

    def close_all(self) -> None:
        if not self._open:
            return
        from superdl.super_wire import coordinator_pb2 as pb

        until_s = time.monotonic() + _TOTAL_S
        deaf: set[str] = set()
        for (address, job, rank), pid in list(self._open.items()):
            left_s = until_s - time.monotonic()
            if pid != os.getpid() or address in deaf or left_s <= 0:
                continue
            # Best effort: a shared coordinator would keep the job as long as it remembers a vanished one.
            single_try = Patience(attempts=1, total_s=left_s, deadline_s=left_s, backoff_s=0.0)
            try:
                Client(address).call("CloseJob", pb.CloseJobRequest(job=job, rank=rank), single_try)
            except SuperError as error:
                _LOG.debug("job %s could not be closed at exit: %s", job, error)
                deaf.add(address)
        self._open.clear()


OPEN_JOBS = _OpenJobs()
STOPPED_AT_EXIT: weakref.WeakSet[_Stoppable] = weakref.WeakSet()


class _InBackground:
    """A task in its own thread. The interpreter waits for it at exit, but not for long."""

    def __init__(self, task: Callable[[], None]) -> None:
        self.pid = os.getpid()
        self._task = task
        self._done = threading.Event()
        STOPPED_AT_EXIT.add(self)
        _thread.start_new_thread(self._run, ())

    def _run(self) -> None:
        try:
            self._task()
        finally:
            self._done.set()

    def stop(self) -> None:
        self._done.wait(_TOTAL_S)


def in_background(task: Callable[[], None]) -> None:
    """Run ``task`` without waiting. For finalizers."""
    # Finalizers may run anywhere, under any lock, and a threading.Thread takes Python's own locks to start.
    _InBackground(task)


@atexit.register
def _leave() -> None:
    # Threads first: one inside grpc can abort the process, and would reopen its job.
    for member in [member for member in STOPPED_AT_EXIT if member.pid == os.getpid()]:
        member.stop()
    OPEN_JOBS.close_all()
