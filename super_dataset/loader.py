"""``SuperLoader``: batches by threads of the training process, in place of a DataLoader's worker processes.

Receiving a batch holds no lock of Python's and needs hardly any CPU, so that threads do what processes would,
without a hand-over.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from superdl.super_dataset.dataset import SuperDataset
from superdl.super_dataset.memory import mover_to, receiving_into
from superdl.super_wire.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

    from superdl.super_dataset.memory import Mover

__all__ = ["SuperLoader"]

_MAX_PREFETCH = 1024
_MAX_THREADS = 64
_EXIT_S = 5.0  # how long the interpreter's end waits for threads; one that waits for the cache is harmless
_CLOSED = "this SuperLoader was closed: make another"

_Ref_co = TypeVar("_Ref_co", covariant=True)
_Ref = TypeVar("_Ref")
_Ref_contra = TypeVar("_Ref_contra", contravariant=True)


class Indexed(Protocol[_Ref_contra]):
    """A dataset: a ``SuperDataset``, or one that wraps it."""

    def __getitem__(self, ref: _Ref_contra, /) -> Any:
        """The batch that ``ref`` names."""


class Sampling(Protocol[_Ref_co]):
    """A sampler: a ``SuperSampler``, or what iterates over its batches."""

    def __iter__(self) -> Iterator[_Ref_co]:
        """A new pass."""

    def __len__(self) -> int:
        """Batches in a pass."""


class SuperLoader(Generic[_Ref]):
    """The batches of a sampler, read ahead by threads; each iteration is the sampler's next epoch.

    On CPU batches lie in memory that is used again when a batch and all its views are gone, never before:
    they may be kept, sliced and passed on. With a CUDA ``device`` they are received into page-locked memory
    and copied on a stream of their own. Errors of a batch are raised in its place, and the iteration can go
    on after it.

    >>> dataset = SuperDataset("images", Recipe.image(resize=32, crop=32))
    >>> loader = SuperLoader(dataset, SuperSampler(dataset, batch_size=4), prefetch=2)
    >>> for images, labels in loader:
    ...     print(images.shape, labels.dtype)
    torch.Size([4, 3, 32, 32]) torch.int64
    torch.Size([4, 3, 32, 32]) torch.int64

    Args:
        dataset: indexed by what the sampler yields.
        sampler: yields ``BatchRef`` s.
        device: where tensors are wanted, as ``torch.device`` takes it; default: where they are received, on
            CPU. Tensors are found in tuples, lists and mappings; whatever else an item holds stays as it is.
        prefetch: how many batches are read ahead of the one that the loop has. Each takes the memory of a
            batch, on the device too.
        threads: how many read at once. One is enough until a batch takes longer to receive than a step.
        collate_fn: called on every item of the dataset, in the thread; what it returns is the batch.

    Raises:
        ConfigError: an argument is wrong, or the device is not to be had.
    """

    def __init__(
        self,
        dataset: Indexed[_Ref],
        sampler: Sampling[_Ref],
        device: torch.device | str | int | None = None,
        prefetch: int = 2,
        *,
        threads: int = 1,
        collate_fn: Callable[[Any], Any] | None = None,
    ) -> None:
        self.dataset = dataset
        self.sampler = sampler
        self.prefetch = _whole("prefetch", prefetch, _MAX_PREFETCH)
        if collate_fn is not None and not callable(collate_fn):
            raise ConfigError(f"collate_fn is called on every item; {collate_fn!r} cannot be")
        self._mover = mover_to(device)
        self._threads = _Threads(_whole("threads", threads, _MAX_THREADS), dataset, collate_fn, self._mover)
        self._latest: _Progress | None = None
        weakref.finalize(self, self._threads.stop)

    @property
    def batch_sampler(self) -> None:
        """There is none, as in a DataLoader with ``batch_size=None``. Lightning asks."""
        return None

    def __len__(self) -> int:
        """Batches in an epoch, of this rank."""
        return len(self.sampler)

    def __iter__(self) -> Iterator[Any]:
        """A new pass; it begins when its first batch is asked for."""
        return _Pass(self)

    def state_dict(self) -> dict[str, Any]:
        """Where the training loop stands: after the last batch that it was given in the latest pass.

        Raises:
            UsageError: the sampler keeps no state.
        """
        keep, latest = self._of_the_sampler("state_dict"), self._latest
        within = {} if latest is None or latest.finished else {"batches_consumed": latest.taken}
        state: dict[str, Any] = keep(**within)
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next pass begin after the batch that was the last when ``state`` was taken.

        Raises:
            ConfigError: the state belongs to another plan.
            UsageError: the sampler keeps no state.
        """
        self._of_the_sampler("load_state_dict")(state)
        self._latest = None

    def close(self) -> None:
        """End the threads; each ends with the batch that it reads. Idempotent; iterating then fails."""
        self._threads.stop()

    def _begin(self, progress: _Progress) -> Iterator[_Ref]:
        """A pass begins: its state is what :meth:`state_dict` tells from now on."""
        refs = iter(self.sampler)
        self._latest = progress
        return refs

    def _of_the_sampler(self, name: str) -> Any:
        method = getattr(self.sampler, name, None)
        if method is None:
            kind = type(self.sampler).__name__
            raise UsageError(f"a SuperLoader's state is its sampler's, and {kind} keeps none")
        return method


class _Progress:
    """How far a pass has come: batches given to the loop, and whether it was told of the end."""

    def __init__(self) -> None:
        self.taken = 0
        self.finished = False


class _Pass(Iterator[Any]):
    """One iteration. It asks the sampler in the loop's own thread, as a DataLoader does."""

    def __init__(self, loader: SuperLoader[Any]) -> None:
        self._loader = loader
        self._mover: Mover = loader._mover  # noqa: SLF001 # a part of SuperLoader
        self._threads = loader._threads  # noqa: SLF001 # the same
        self._progress = _Progress()
        self._refs: Iterator[Any] | None = None
        self._exhausted = False
        self._trouble: Exception | None = None  # what the sampler raised in place of a batch
        self._passed = 0  # batches that were given to the loop, or failed
        self._ahead: deque[Future[Any]] = deque()
        weakref.finalize(self, _give_up, self._ahead).atexit = False

    def __next__(self) -> Any:
        self._ask_ahead()
        if not self._ahead:
            trouble, self._trouble = self._trouble, None
            if trouble is not None:
                raise trouble
            self._progress.finished = True
            raise StopIteration
        self._threads.check()
        wait([self._ahead[0]])  # may be interrupted: the batch stays the next one
        future = self._ahead.popleft()
        self._passed += 1
        try:
            item = self._mover.receive(future.result())
        finally:
            del future  # or an error, its frames and the future would hold one another
        self._progress.taken = self._passed
        return item

    def _ask_ahead(self) -> None:
        """Have the next batch read and those to come after it."""
        if self._refs is None:
            self._refs = self._loader._begin(self._progress)  # noqa: SLF001 # a part of SuperLoader
        while self._trouble is None and not self._exhausted and len(self._ahead) <= self._loader.prefetch:
            try:
                ref = next(self._refs)
            except StopIteration:
                self._exhausted = True
            except Exception as error:  # noqa: BLE001 # raised once the batches before it were given out
                self._trouble = error
            else:
                self._ahead.append(self._threads.read(ref))


def _give_up(ahead: deque[Future[Any]]) -> None:
    """A pass was left: what nobody has begun to read is not read."""
    for future in ahead:
        future.cancel()
    ahead.clear()


def _whole(name: str, value: object, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ConfigError(f"{name} is a whole number from 1 to {most}; not {value!r}")
    return value


class _Threads:
    """``count`` threads, started when the first batch is asked for, that serve until :meth:`stop`.

    They are daemons, so that the interpreter's end does not wait for a batch that is still to come; but it
    waits a moment, since a thread that is ended within torch's C++ aborts the process. They hold no batch
    while they wait for work.
    """

    def __init__(
        self, count: int, dataset: Any, collate_fn: Callable[[Any], Any] | None, mover: Mover
    ) -> None:
        self._count = count
        self._dataset = dataset
        self._collate_fn = collate_fn
        self._mover = mover
        self._lock = threading.Lock()
        self._announce = dataset.announce if isinstance(dataset, SuperDataset) else None
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
        with receiving_into(self._mover.memory):
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


_running: weakref.WeakSet[_Threads] = weakref.WeakSet()


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
