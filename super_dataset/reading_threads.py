"""The threads that read batches for a ``SuperLoader``."""

from __future__ import annotations

import atexit
import os
import queue
import threading
import time
import weakref
from collections import deque
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any

from superdl.super_dataset.memory.batch_memory import receiving_into
from superdl.super_dataset.reading.bad_samples import LEAVES_OUT
from superdl.super_wire.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from superdl.super_dataset.memory.batch_memory import Mover
    from superdl.super_dataset.worker_processes import Load

_EXIT_S = 5.0  # limit for joining threads at exit; one that waits for the cache does no harm
_CLOSED = "this SuperLoader is closed. Create a new one"


class ReadingThreads:
    """``count`` threads that read batches. They start with the first batch and run until :meth:`stop`."""

    def __init__(self, load: Load, mover: Mover, count: int, prefetch: int) -> None:
        self.mover = mover
        self._make = load
        self._count = count
        self._prefetch = prefetch
        self._lock = threading.Lock()
        self._tasks: queue.SimpleQueue[tuple[Any, Future[Any]] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._pid = os.getpid()
        self._stopped = False

    def begin(self, sampler: Any) -> ThreadPass:
        """Return a new pass over the sampler, which is iterated in the training loop's thread."""
        return ThreadPass(self, iter(sampler), self._prefetch)

    def check(self) -> None:
        """Raise :class:`UsageError` after :meth:`stop` and in a forked process."""
        if self._stopped:
            raise UsageError(_CLOSED)
        if self._pid != os.getpid():
            msg = "use a SuperLoader only in the process that created it, since threads do not survive a fork"
            raise UsageError(msg)

    def read(self, ref: Any) -> Future[Any]:
        """Schedule a batch to be read after all batches scheduled so far."""
        self.check()
        if len(self._threads) < self._count:
            self._start()
        future: Future[Any] = Future()
        self._tasks.put((ref, future))
        if self._stopped:  # since check(), so there may be no thread left
            self._fail_pending()
        return future

    def stop(self) -> None:
        """Stop each thread after its current batch, and fail all pending batches. Idempotent."""
        # Takes no lock, since garbage collection may call it anywhere.
        self._stopped = True
        if self._pid == os.getpid():
            self._fail_pending()

    def join(self, until_s: float) -> None:
        """Wait for the threads to end after :meth:`stop`, at most until the monotonic time ``until_s``."""
        for thread in self._threads:
            thread.join(max(0.0, until_s - time.monotonic()))

    def _start(self) -> None:
        _running.add(self)
        with self._lock:
            for number in range(len(self._threads), self._count):
                # Daemon threads, so that the interpreter does not wait for a late batch at exit.
                thread = threading.Thread(target=self._serve, name=f"super-read-{number}", daemon=True)
                thread.start()
                self._threads.append(thread)

    def _serve(self) -> None:
        LEAVES_OUT.set(True)
        with receiving_into(self.mover.memory, finished_elsewhere=self._make.finished_elsewhere):
            while (task := self._tasks.get()) is not None:
                self._work(*task)
                del task  # free its batch while waiting for work
        self._tasks.put(None)  # for the next thread

    def _work(self, ref: Any, future: Future[Any]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            item = self.mover.send(self._make(ref))
        except BaseException as error:  # noqa: BLE001 # raised where the batch is requested
            future.set_exception(error)
            del future  # breaks a reference cycle of error, traceback and future
        else:
            future.set_result(item)

    def _fail_pending(self) -> None:
        """Fail all batches that no thread has started, and signal the threads to end."""
        while True:
            try:
                task = self._tasks.get_nowait()
            except queue.Empty:
                break
            if task is not None and task[1].set_running_or_notify_cancel():
                task[1].set_exception(UsageError(_CLOSED))
        self._tasks.put(None)


class ThreadPass:
    """One pass over a sampler. ``passed`` counts the batches that were taken or failed."""

    def __init__(self, threads: ReadingThreads, refs: Iterator[Any], prefetch: int) -> None:
        self.passed = 0
        self._threads = threads
        self._refs = refs
        self._prefetch = prefetch
        self._exhausted = False
        self._error: BaseException | None = None  # the sampler's, raised in place of a batch
        self._ahead: deque[Future[Any]] = deque()
        # An abandoned pass need not read the batches that no thread has started.
        weakref.finalize(self, _cancel_all, self._ahead).atexit = False

    def take(self) -> Any:
        """Return the next batch, ready for use, or raise the error that prevented it."""
        self._read_ahead()
        if not self._ahead:
            error, self._error = self._error, None
            raise error or StopIteration
        self._threads.check()
        wait([self._ahead[0]])  # if this is interrupted, the batch remains the next one
        future = self._ahead.popleft()
        self.passed += 1
        try:
            return self._threads.mover.receive(future.result())
        finally:
            del future  # breaks a reference cycle of an error, its frames and the future

    def _read_ahead(self) -> None:
        while self._error is None and not self._exhausted and len(self._ahead) <= self._prefetch:
            try:
                ref = next(self._refs)
            except StopIteration:
                self._exhausted = True
            except Exception as error:  # noqa: BLE001 # raised after the batches before it
                self._error = error
            else:
                self._ahead.append(self._threads.read(ref))


def _cancel_all(ahead: deque[Future[Any]]) -> None:
    for future in ahead:
        future.cancel()
    ahead.clear()


_running: weakref.WeakSet[ReadingThreads] = weakref.WeakSet()


@atexit.register
def _end_threads() -> None:
    # A thread that is inside torch's C++ when the interpreter exits would abort the process.
    threads = list(_running)
    for thread in threads:
        thread.stop()
    until_s = time.monotonic() + _EXIT_S
    for thread in threads:
        thread.join(until_s)
