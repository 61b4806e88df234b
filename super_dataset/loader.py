"""``SuperLoader``: batches by threads of the training process, in place of a DataLoader's worker processes.

Receiving a batch holds no lock of Python's and needs hardly any CPU, so that threads do what processes would,
without a hand-over. What a thread does is :mod:`superdl.super_dataset.reading_threads`', how a batch comes to
an accelerator :mod:`superdl.super_dataset.memory.device`'s.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from superdl.super_dataset.memory import mover_to
from superdl.super_dataset.reading_threads import ReadingThreads
from superdl.super_wire.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

    from superdl.super_dataset.memory import Mover

__all__ = ["SuperLoader"]

_MAX_PREFETCH = 1024
_MAX_THREADS = 64

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

    Use it where a ``DataLoader(dataset, sampler=sampler, batch_size=None, num_workers=...)`` would stand. On
    CPU batches lie in memory that is used again when a batch and all its views are gone, never before: they
    may be kept, sliced and passed on. With a CUDA ``device`` they are received into page-locked memory,
    copied on a stream of their own and are on the device when they are asked for. Errors of a batch are
    raised in its place, and the iteration can go on after it.

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
            msg = f"collate_fn is called on every item; {collate_fn!r} cannot be"
            raise ConfigError(msg)
        self._mover = mover_to(device)
        self._threads = ReadingThreads(
            _whole("threads", threads, _MAX_THREADS), dataset, collate_fn, self._mover
        )
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
        keep = getattr(self.sampler, "state_dict", None)
        if keep is None:
            raise self._stateless()
        latest = self._latest
        state: dict[str, Any] = (
            keep() if latest is None or latest.finished else keep(batches_consumed=latest.taken)
        )
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next pass begin after the batch that was the last when ``state`` was taken.

        Raises:
            ConfigError: the state belongs to another plan.
            UsageError: the sampler keeps no state.
        """
        load = getattr(self.sampler, "load_state_dict", None)
        if load is None:
            raise self._stateless()
        load(state)
        self._latest = None

    def close(self) -> None:
        """End the threads; each ends with the batch that it reads. Idempotent; iterating then fails."""
        self._threads.stop()

    def _begin(self, progress: _Progress) -> Iterator[_Ref]:
        """A pass begins: its state is what :meth:`state_dict` tells from now on."""
        refs = iter(self.sampler)
        self._latest = progress
        return refs

    def _stateless(self) -> UsageError:
        return UsageError(
            f"a SuperLoader's state is its sampler's, and {type(self.sampler).__name__} keeps none"
        )


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
        msg = f"{name} is a whole number from 1 to {most}; not {value!r}"
        raise ConfigError(msg)
    return value
