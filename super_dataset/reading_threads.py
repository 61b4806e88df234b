"""The threads of a ``SuperLoader``: each reads a batch, collates it and sends it to the device.

They are daemons, so that the interpreter's end does not wait for a batch that is still to come; but it waits
a moment for them, since a thread that is ended within torch's C++ aborts the process. They hold no batch
while they wait for work, so that memory comes back as soon as the training loop lets go of it.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
import time
import weakref
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from superdl.super_dataset.memory import receiving_into
from superdl.super_wire.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from superdl.super_dataset.memory import Mover

__all__ = ["ReadingThreads"]

_Tasks = queue.SimpleQueue["tuple[Any, Future[Any]] | None"]

_EXIT_S = (
    5.0  # how long the interpreter's end waits for threads; one that waits for the cache dies without harm
)
_CLOSED = "this SuperLoader was closed: make another"


class ReadingThreads:
    """``count`` threads, started when the first batch is asked for, that serve until :meth:`stop`.

    Args:
        count: how many.
        dataset: indexed by what :meth:`read` is given.
        collate_fn: called on each item, if there is one.
        mover: has the memory to receive into, and sends items to the device.
    """

    def __init__(
        self, count: int, dataset: Any, collate_fn: Callable[[Any], Any] | None, mover: Mover
    ) -> None:
        def load(ref: Any) -> Any:
            item = dataset[ref]
            return mover.send(item if collate_fn is None else collate_fn(item))

        self._count = count
        self._load = load
        self._memory = mover.memory
        self._lock = threading.Lock()
        self._tasks: _Tasks = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._pid = os.getpid()
        self._stopped = False

    def check(self) -> None:
        """Raise :class:`UsageError` where no batch can be had: after :meth:`stop`, and in a fork."""
        if self._stopped:
            raise UsageError(_CLOSED)
        if self._pid != os.getpid():
            msg = "a SuperLoader is used in the process that made it: its threads do not survive a fork"
            raise UsageError(msg)

    def read(self, ref: Any) -> Future[Any]:
        """Have a batch read; batches are begun in the order in which they are asked for.

        Raises:
            UsageError: see :meth:`check`.
            RuntimeError: the system has no thread left.
        """
        self.check()
        if len(self._threads) < self._count:
            self._start()
        future: Future[Any] = Future()
        self._tasks.put((ref, future))
        if self._stopped:  # since check(), so that perhaps no thread is left to see it
            self._refuse_what_waits()
        return future

    def stop(self) -> None:
        """Let each thread end after the batch that it reads; what is not begun fails. Idempotent.

        A garbage collection may call it anywhere, so it takes no lock.
        """
        self._stopped = True
        if self._pid == os.getpid():
            self._refuse_what_waits()

    def join(self, timeout_s: float) -> None:
        """Wait so long for the threads to end, after :meth:`stop`."""
        until_s = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, until_s - time.monotonic()))

    def _start(self) -> None:
        _running.add(self)
        with self._lock:
            for number in range(len(self._threads), self._count):
                thread = threading.Thread(target=self._serve, name=f"super-read-{number}", daemon=True)
                thread.start()
                self._threads.append(thread)

    def _serve(self) -> None:
        with receiving_into(self._memory):
            while (task := self._tasks.get()) is not None:
                _work(self._load, *task)
                del task
        self._tasks.put(None)  # for the next thread

    def _refuse_what_waits(self) -> None:
        """Fail what no thread has begun, and leave the sign to end."""
        while True:
            try:
                task = self._tasks.get_nowait()
            except queue.Empty:
                break
            if task is not None and task[1].set_running_or_notify_cancel():
                task[1].set_exception(UsageError(_CLOSED))
        self._tasks.put(None)


_running: weakref.WeakSet[ReadingThreads] = weakref.WeakSet()


@atexit.register
def _end_threads() -> None:
    """Let the threads end before the interpreter ends them, wherever they are."""
    threads = list(_running)
    for each in threads:
        each.stop()
    until_s = time.monotonic() + _EXIT_S
    for each in threads:
        each.join(max(0.0, until_s - time.monotonic()))


def _work(load: Callable[[Any], Any], ref: Any, future: Future[Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        item = load(ref)
    except BaseException as error:  # noqa: BLE001 # raised where the batch is asked for
        future.set_exception(error)
        del future  # or error, traceback and future would hold one another, and the batch
    else:
        future.set_result(item)
