"""The threads of a ``SuperLoader``: each reads a batch, collates it and sends it to the device.

They are daemons: at the interpreter's end nobody waits for a batch that is still to come. They hold no batch
while they wait for work, so that memory comes back as soon as the training loop lets go of it.
"""

from __future__ import annotations

import os
import queue
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from super_dataset.memory import receiving_into
from super_wire.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from super_dataset.device import Mover
    from super_dataset.memory import Memory

__all__ = ["ReadingThreads"]

_Tasks = queue.SimpleQueue["tuple[Any, Future[Any]] | None"]


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
        self._tasks: _Tasks = queue.SimpleQueue()
        self._pid = 0
        self._stopped = False

    def read(self, ref: Any) -> Future[Any]:
        """Have a batch read; batches are begun in the order in which they are asked for.

        Raises:
            UsageError: :meth:`stop` was called, or this is a fork of the process that made the threads.
        """
        if self._stopped:
            msg = "this SuperLoader was closed: make another"
            raise UsageError(msg)
        if not self._pid:
            self._start()
        elif self._pid != os.getpid():
            msg = "a SuperLoader is used in the process that made it: its threads do not survive a fork"
            raise UsageError(msg)
        future: Future[Any] = Future()
        self._tasks.put((ref, future))
        return future

    def stop(self) -> None:
        """Let each thread end after the batch that it reads; what is not begun is cancelled. Idempotent."""
        if self._stopped or self._pid != os.getpid():
            self._stopped = True
            return
        self._stopped = True
        while True:
            try:
                task = self._tasks.get_nowait()
            except queue.Empty:
                break
            if task is not None:
                task[1].cancel()
        for _ in range(self._count):
            self._tasks.put(None)

    def _start(self) -> None:
        self._pid = os.getpid()
        for number in range(self._count):
            threading.Thread(
                target=_serve,
                args=(self._tasks, self._load, self._memory),
                name=f"super-read-{number}",
                daemon=True,
            ).start()


def _serve(tasks: _Tasks, load: Callable[[Any], Any], memory: Memory) -> None:
    with receiving_into(memory):
        while (task := tasks.get()) is not None:
            _work(load, *task)
            del task


def _work(load: Callable[[Any], Any], ref: Any, future: Future[Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        item = load(ref)
    except BaseException as error:  # noqa: BLE001 # raised where the batch is asked for
        future.set_exception(error)
    else:
        future.set_result(item)
