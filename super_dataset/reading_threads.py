"""Threads that read batches for a ``SuperLoader``, and end with it or with the interpreter."""

from __future__ import annotations

import atexit
import os
import queue
import threading
import time
import weakref
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from superdl.super_dataset.memory import receiving_into
from superdl.super_dataset.reading import LEAVES_OUT
from superdl.super_wire.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from superdl.super_dataset.memory import Mover

__all__ = ["ReadingThreads"]

_EXIT_S = 5.0  # how long the interpreter's end waits for threads; one that waits for the cache is harmless
_CLOSED = "this SuperLoader was closed: make another"


class ReadingThreads:
    """``count`` threads, started when the first batch is asked for, that serve until :meth:`stop`.

    They are daemons, so that the interpreter's end does not wait for a batch that is still to come; but it
    waits a moment, since a thread that is ended within torch's C++ aborts the process. They hold no batch
    while they wait for work. What is ``finished_elsewhere`` may come to the mover as an ``Unfinished``.
    """

    def __init__(
        self,
        count: int,
        dataset: Any,
        collate_fn: Callable[[Any], Any] | None,
        mover: Mover,
        *,
        finished_elsewhere: bool,
    ) -> None:
        self._count = count
        self._dataset = dataset
        self._collate_fn = collate_fn
        self._mover = mover
        self._finished_elsewhere = finished_elsewhere and mover.finishes and collate_fn is None
        self._lock = threading.Lock()
        self._announce = getattr(dataset, "announce", None)
        self._tasks: queue.SimpleQueue[tuple[Any, Future[Any]] | None] = queue.SimpleQueue()
        self._waiting: deque[Any] = deque()  # the refs of the tasks
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
        """Have a batch read; batches are begun in the order in which they are asked for."""
        self.check()
        if len(self._threads) < self._count:
            self._start()
        future: Future[Any] = Future()
        with self._lock:
            self._waiting.append(ref)
        self._tasks.put((ref, future))
        if self._stopped:  # since check(), so that perhaps no thread is left to see it
            self._refuse_what_waits()
        return future

    def stop(self) -> None:
        """Let each thread end after the batch that it reads; what is not begun fails. Idempotent."""
        # A garbage collection may call it anywhere, so it takes no lock.
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
        LEAVES_OUT.set(True)
        with receiving_into(self._mover.memory, finished_elsewhere=self._finished_elsewhere):
            while (task := self._tasks.get()) is not None:
                _work(self._load, *task)
                del task
        self._tasks.put(None)  # for the next thread

    def _load(self, ref: Any) -> Any:
        self._look_ahead(ref)
        item = self._dataset[ref]
        return self._mover.send(item if self._collate_fn is None else self._collate_fn(item))

    def _look_ahead(self, ref: Any) -> None:
        """A batch is about to be read: the disk may fetch the next one while this one is copied."""
        waiting = self._waiting
        with self._lock:
            while any(one is ref for one in waiting) and waiting.popleft() is not ref:
                pass  # another thread has it
            following = waiting[0] if waiting else None
        if following is not None and self._announce is not None:
            self._announce(following)

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
    except StopIteration as error:  # raised by next(), it would end the epoch without a word
        failed = RuntimeError("the dataset, its transform or collate_fn raised StopIteration")
        failed.__cause__ = error
        future.set_exception(failed)
        del future
    except BaseException as error:  # noqa: BLE001 # raised where the batch is asked for
        future.set_exception(error)
        del future  # or error, traceback and future would hold one another, and the batch
    else:
        future.set_result(item)
