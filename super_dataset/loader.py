"""``SuperLoader``: batches by threads of the training process, in place of a DataLoader's worker processes.

Receiving a batch holds no lock of Python's and needs hardly any CPU, so that threads do what processes would,
without a hand-over.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator
from concurrent.futures import wait
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Protocol, Self, TypeVar

from torch.utils.data import ConcatDataset, Subset

from superdl.super_dataset.dataset import SuperDataset
from superdl.super_dataset.listed_source import coordination
from superdl.super_dataset.memory import mover_to
from superdl.super_dataset.mixing import SuperMix, whole_of
from superdl.super_dataset.reading import BatchLeftOut
from superdl.super_dataset.reading_threads import ReadingThreads
from superdl.super_wire.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Future
    from types import TracebackType

    import torch

    from superdl.super_dataset.memory import Mover
    from superdl.super_dataset.reading import BadSample

__all__ = ["SuperLoader"]

_MAX_PREFETCH = 1024
_MAX_THREADS = 64
_MAX_WORKERS = 4096

_OF_WORKERS = frozenset({"prefetch_factor", "timeout", "multiprocessing_context", "pin_memory_device"})
"""Arguments of a DataLoader that change nothing where there are no worker processes."""

_INSTEAD = {
    "worker_init_fn": "its threads share this process, and transforms are seeded for each sample, so that "
    "most scripts leave it out; what worker processes need takes DataLoader(dataset, sampler=sampler, "
    "batch_size=None, worker_init_fn=...)",
    "batch_sampler": "a SuperSampler plans whole batches: give batch_size, or the sampler",
    "generator": "the order of an epoch follows from a number: give seed",
}
"""Others of its arguments, and what to do."""

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

    It takes a sampler, or makes its own where it is given a ``batch_size``, and closes that one, also when it
    is dropped. So the call of a ``DataLoader`` becomes this one by its name.

    On CPU batches lie in memory that is used again when a batch and all its views are gone, never before:
    they may be kept, sliced and passed on. With a CUDA ``device`` they are received into page-locked memory
    and copied on a stream of their own. Errors of a batch are raised in its place, and the iteration can go
    on after it.

    >>> dataset = SuperDataset("images", Recipe.image(resize=32, crop=32))
    >>> with SuperLoader(dataset, batch_size=4, shuffle=True, num_workers=4) as loader:
    ...     for images, labels in loader:
    ...         print(images.shape, labels.dtype)
    torch.Size([4, 3, 32, 32]) torch.int64
    torch.Size([4, 3, 32, 32]) torch.int64
    >>> len(loader), loader.batch_size, len(loader.dataset), loader.sampler.total_size
    (2, 4, 8, 8)
    >>> loader = SuperLoader(dataset, SuperSampler(dataset, batch_size=4, shuffle=True), device="cpu", prefetch=2)

    Args:
        dataset: indexed by what the sampler yields; a ``SuperDataset``, a ``Subset`` of one, a ``SuperMix``
            or a ``ConcatDataset``, where there is no sampler.
        sampler: yields ``BatchRef`` s; ``None``: a ``SuperSampler`` is made of what follows.
        device: where tensors are wanted, as ``torch.device`` takes it; default: where they are received, on
            CPU. Tensors are found in tuples, lists and mappings; whatever else an item holds stays as it is.
        prefetch: how many batches are read ahead of the one that the loop has. Each takes the memory of a
            batch, on the device too.
        batch_size: samples per batch on this rank. Beside a sampler it may be given if that says the same.
        shuffle: whether each epoch has its own order; not beside a sampler. As in a DataLoader, and unlike
            in a ``SuperSampler``, the default is ``False``.
        drop_last: leave out the short last global batch. Beside a sampler only if that does so.
        num_workers: how many threads read where ``threads`` does not say it, but no more than batches are
            read at once, ``prefetch + 1``; 0 is one thread. Threads need no GIL to receive, so that one does
            what several worker processes did. More help a ``collate_fn`` or transform that takes long; else
            leave it out, since three threads were measured to take a fifth more CPU than one.
        threads: how many read at once. One is enough until a batch takes longer to receive than a step.
        collate_fn: called on every item of the dataset, in the thread; what it returns is the batch.
        pin_memory: accepted, and without effect: for page-locked memory name the ``device``.
        persistent_workers: the same: threads stay as long as the loader.
        of_sampler: further arguments of the ``SuperSampler`` that is made: seed, coordinator, job, ... A
            DataLoader's ``prefetch_factor``, ``timeout``, ``multiprocessing_context`` and
            ``pin_memory_device`` are accepted without effect, ``prefetch`` and the dataset's ``read_timeout``
            being what says it here. Its other arguments are refused, with what to write instead.

    Raises:
        ConfigError: an argument is wrong, or contradicts the sampler's, or the device is not to be had.
        UsageError: there is no sampler, and ``dataset`` is no SuperDataset.
        SuperError: what :class:`SuperSampler` raises, where it is made.
    """

    def __init__(
        self,
        dataset: Indexed[_Ref],
        sampler: Sampling[_Ref] | None = None,
        device: torch.device | str | int | None = None,
        prefetch: int = 2,
        *,
        batch_size: int | None = None,
        shuffle: bool | None = None,
        drop_last: bool = False,
        num_workers: int = 0,
        threads: int | None = None,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        persistent_workers: bool = False,
        **of_sampler: Any,
    ) -> None:
        of_sampler = _without_workers(of_sampler)
        self.dataset = dataset
        self.prefetch = _whole("prefetch", prefetch, 1, _MAX_PREFETCH)
        self.num_workers = _whole("num_workers", num_workers, 0, _MAX_WORKERS)
        self.pin_memory, self.persistent_workers = pin_memory, persistent_workers
        if collate_fn is not None and not callable(collate_fn):
            raise ConfigError(f"collate_fn is called on every item; {collate_fn!r} cannot be")
        if threads is None:
            threads = min(max(1, num_workers), self.prefetch + 1, _MAX_THREADS)
        whole = SuperMix(dataset) if type(dataset) is ConcatDataset else whole_of(dataset)
        self._mover = mover_to(device)
        self._threads = ReadingThreads(
            _whole("threads", threads, 1, _MAX_THREADS),
            whole,
            collate_fn,
            self._mover,
            finished_elsewhere=type(whole) is SuperDataset,  # others may look at what they wrap
        )
        self._made: Any = None
        """The sampler that is closed with the loader."""
        if sampler is not None:
            if isinstance(sampler, int):
                raise ConfigError(f"the sampler's place holds {sampler}: write batch_size={sampler}")
            if isinstance(dataset, Subset) and getattr(sampler, "made_of", dataset) is not dataset:
                raise ConfigError(
                    "the sampler beside a part of a dataset is made of that part: "
                    f"{type(sampler).__name__}(part, ...); this one is of another"
                )
            _check_agreed(sampler, batch_size, of_sampler, shuffle=shuffle, drop_last=drop_last)
            self.sampler = sampler
        else:
            if batch_size is None:
                raise ConfigError("a SuperLoader takes a sampler, or a batch_size to make one of")
            make = coordination("a SuperLoader without a sampler").SuperSampler
            how = {
                "batch_size": batch_size,
                "shuffle": shuffle or False,
                "drop_last": drop_last,
                **of_sampler,
            }
            self.sampler = self._made = make(dataset, **how)
            weakref.finalize(self, self._made.close_soon).atexit = False  # the sampler has its own way there
        self._latest: _Progress | None = None
        weakref.finalize(self, self._threads.stop)

    @property
    def batch_size(self) -> int | None:
        """Samples per batch on this rank; ``None`` where the sampler does not say."""
        size: int | None = getattr(self.sampler, "batch_size", None)
        return size

    @property
    def drop_last(self) -> bool:
        """Whether the sampler leaves out the short last global batch."""
        return bool(getattr(self.sampler, "drop_last", False))

    @property
    def bad_samples(self) -> tuple[BadSample, ...]:
        """The bad samples that its datasets skipped or replaced until now; see :class:`SuperDataset`."""
        return tuple(getattr(self.sampler, "bad_samples", ()))

    def set_epoch(self, epoch: int) -> None:
        """Make ``epoch`` the one that the next iteration begins: the sampler's ``set_epoch``.

        Raises:
            UsageError: the sampler has none.
        """
        self._of_the_sampler("set_epoch")(epoch)

    def __repr__(self) -> str:
        return (
            f"<SuperLoader: {len(self)} batches of {self.batch_size}, prefetch={self.prefetch}, "
            f"of {self.dataset!r} by {self.sampler!r}>"
        )

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
        """End the threads; each ends with the batch that it reads. Idempotent; iterating then fails.

        A sampler that the loader has made is closed too; one that it was given is not.
        """
        self._threads.stop()
        if self._made is not None:
            self._made.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def multiprocessing_context(self) -> NoReturn:
        """Refuse: only code that makes a DataLoader of another's arguments, and loses the plan, reads it."""
        raise UsageError(
            "a SuperLoader cannot be made into a DataLoader, as Accelerate's skip_first_batches does: save "
            "loader.state_dict() and give it to loader.load_state_dict(), which skips in constant time"
        )

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            "a SuperLoader holds threads and a sampler and cannot be pickled or copied: pickle its dataset, "
            "and make a loader of that in each process; loader.state_dict() is the place to go on at"
        )

    def _of_the_sampler(self, name: str) -> Any:
        method = getattr(self.sampler, name, None)
        if method is None:
            kind = type(self.sampler).__name__
            raise UsageError(f"{name} of a SuperLoader is its sampler's, and {kind} has none")
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
        self._trouble: BaseException | None = None  # what the sampler raised in place of a batch
        self._none_good: BaseException | None = None  # to be raised if no batch has a good sample
        self._passed = 0  # batches that were given to the loop, or failed
        self._ahead: deque[Future[Any]] = deque()
        weakref.finalize(self, _give_up, self._ahead).atexit = False

    def __next__(self) -> Any:
        while True:
            self._ask_ahead()
            if not self._ahead:
                trouble = self._trouble or (None if self._progress.taken else self._none_good)
                self._trouble = self._none_good = None
                self._progress.finished = trouble is None
                raise trouble or StopIteration
            self._threads.check()
            wait([self._ahead[0]])  # may be interrupted: the batch stays the next one
            future = self._ahead.popleft()
            self._passed += 1
            try:
                item = self._mover.receive(future.result())
            except BatchLeftOut as left_out:
                self._none_good = left_out.__cause__ or self._none_good
                continue
            finally:
                del future  # or an error, its frames and the future would hold one another
            self._progress.taken = self._passed
            return item

    def _ask_ahead(self) -> None:
        """Have the next batch read and those to come after it."""
        if self._refs is None:
            self._refs = iter(self._loader.sampler)
            self._loader._latest = self._progress  # noqa: SLF001 # what its state_dict is of from now on
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


def _whole(name: str, value: object, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ConfigError(f"{name} is a whole number from {least} to {most}; not {value!r}")
    return value


def _without_workers(given: dict[str, Any]) -> dict[str, Any]:
    """What is for a sampler; ``ConfigError`` for what a DataLoader takes and threads cannot do."""
    for name, instead in _INSTEAD.items():
        if given.get(name) is not None:
            raise ConfigError(f"a SuperLoader takes no {name}: {instead}")
    return {name: value for name, value in given.items() if name not in {*_INSTEAD, *_OF_WORKERS}}


def _check_agreed(
    sampler: object,
    batch_size: int | None,
    of_sampler: dict[str, Any],
    *,
    shuffle: bool | None,
    drop_last: bool,
) -> None:
    """Refuse, by ``ConfigError``, arguments that contradict the sampler beside them."""
    kind, theirs = type(sampler).__name__, getattr(sampler, "batch_size", None)
    if batch_size not in (None, theirs):
        says = "deals out single samples" if theirs is None else f"makes batches of {theirs}"
        raise ConfigError(
            f"batch_size={batch_size}, and the {kind} beside it {says}: leave it out, since "
            "SuperLoader(dataset, batch_size=...) makes a SuperSampler, which shares samples among ranks, or "
            "leave out batch_size"
        )
    given = ["shuffle"] if shuffle else []
    given += ["drop_last"] if drop_last and not getattr(sampler, "drop_last", False) else []
    given += sorted(of_sampler)
    if given:
        raise ConfigError(
            f"{', '.join(given)}: the {kind} decides that; give it there, or leave out the sampler"
        )
