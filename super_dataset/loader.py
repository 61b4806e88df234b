"""``SuperLoader``: the batches of a plan, read by threads or by worker processes."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Self

import torch
from torch.utils.data import ConcatDataset, Subset

from superdl.super_dataset.dataset import SuperDataset
from superdl.super_dataset.memory.batch_memory import mover_to
from superdl.super_dataset.mixing import SuperMix, whole_of
from superdl.super_dataset.reading.bad_samples import BatchLeftOut
from superdl.super_dataset.reading_threads import ReadingThreads
from superdl.super_dataset.worker_processes import (
    Load,
    WorkerProcesses,
    choose_processes,
    default_workers,
    pop_worker_options,
)
from superdl.super_wire.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import TracebackType

    from superdl.super_dataset.reading.bad_samples import BadSample
    from superdl.super_dataset.reading_threads import ThreadPass
    from superdl.super_dataset.worker_processes import ProcessPass

_LOG = logging.getLogger("superdl.super_dataset")

_MAX_PREFETCH = 1024
_MAX_THREADS = 64
_MAX_WORKERS = 4096


class SuperLoader:
    """Reads a sampler's batches ahead of the training loop. Each iteration covers the sampler's next epoch.

    Batches are read by threads, or by worker processes if your code may use global random number generators.
    Both produce the same batches. The choice and its reason are logged at level INFO and shown by
    ``repr(loader)``.

    Pass a sampler, or a ``batch_size`` to create one that is closed with the loader. Code that uses a
    ``DataLoader`` only needs to change the name.

    On the CPU, a batch's memory is reused only once the batch and all of its views are gone, so you can keep,
    slice and pass on batches. With a CUDA ``device``, batches are received into page-locked memory and
    copied on a separate stream. If a batch cannot be read, the error is raised in its place, and
    the iteration can continue.

    >>> dataset = SuperDataset("images", Recipe.image(resize=32, crop=32))
    >>> with SuperLoader(dataset, batch_size=4, shuffle=True, num_workers=4) as loader:
    ...     for images, labels in loader:
    ...         print(images.shape, labels.dtype)
    torch.Size([4, 3, 32, 32]) torch.int64
    torch.Size([4, 3, 32, 32]) torch.int64
    >>> len(loader), loader.batch_size, len(loader.dataset), loader.sampler.total_size
    (2, 4, 8, 8)
    >>> sampler = SuperSampler(dataset, batch_size=4, shuffle=True)
    >>> loader = SuperLoader(dataset, sampler, device="cpu", prefetch=2)

    Args:
        dataset: a ``SuperDataset``, a ``Subset`` of one, a ``SuperMix`` or a ``ConcatDataset``. With a
            sampler, it may be any object that accepts the sampler's items as indices.
        sampler: an iterable of ``BatchRef`` s. If ``None``, a ``SuperSampler`` is created from the arguments
            below. With ``batch_size``, it may be any sampler of indices, as in ``SuperSampler(sampler=)``.
        device: destination of tensors, as accepted by ``torch.device``. By default, they stay on the CPU.
            Tensors inside tuples, lists and mappings are moved too. Other values stay as they are.
        prefetch: number of batches to read ahead of the training loop, or two per worker process if that is
            more. Each one occupies a batch's memory, also on the device.
        batch_size: samples per batch on this rank. With a sampler, it must match the sampler's.
        shuffle: whether to reshuffle every epoch, by default ``False`` as in a DataLoader. Not allowed
            with a sampler.
        drop_last: whether to drop the incomplete last global batch. With a sampler, it must match the
            sampler's.
        num_workers: number of worker processes if the transform, ``collate_fn`` or a wrapping dataset may use
            the global random number generators of Python, numpy or torch. The default is one per core of this
            rank, up to 16. With 0, the training process reads the batches. If nothing uses these generators,
            this is the number of threads, at least 1 and at most ``prefetch + 1``. One thread does the work
            of several processes.
        threads: number of threads to use even if such generators may be used (not allowed with per-image
            transforms). 0 selects processes.
        collate_fn: as in a DataLoader. With ``batch_size``, it is called with a list of the batch's samples,
            each like ``dataset[i]``, otherwise with each item of the dataset. Its result is the batch.
        pin_memory: as in a DataLoader, for worker processes. Threads always receive into page-locked memory
            if ``device`` is a CUDA device.
        persistent_workers: whether to keep worker processes for the next epoch. Threads are always kept.
        for_sampler: further arguments for the new ``SuperSampler``, such as seed, batch_sampler or job. Of a
            DataLoader's arguments, ``prefetch_factor``, ``timeout`` and ``multiprocessing_context`` apply to
            worker processes, ``worker_init_fn`` requires worker processes, and ``generator`` sets the seed.

    Raises:
        ConfigError: an argument is invalid or contradicts the sampler, or the device is not available.
        UsageError: no sampler was passed, and ``dataset`` is not a SuperDataset.
        SuperError: the errors of :class:`SuperSampler`, if one is created.
    """

    def __init__(
        self,
        dataset: Any,
        sampler: Iterable[Any] | None = None,
        device: torch.device | str | int | None = None,
        prefetch: int = 2,
        *,
        batch_size: int | None = None,
        shuffle: bool | None = None,
        drop_last: bool = False,
        num_workers: int | None = None,
        threads: int | None = None,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        persistent_workers: bool = True,
        **for_sampler: Any,
    ) -> None:
        for_workers = pop_worker_options(for_sampler)
        batch_sampled = for_sampler.get("batch_sampler") is not None
        if sampler is not None and batch_size is not None and not hasattr(sampler, "batch_size"):
            for_sampler["sampler"], sampler = sampler, None  # it yields indices
        self.dataset = dataset
        self.prefetch = _whole("prefetch", prefetch, 1, _MAX_PREFETCH)
        self.pin_memory, self.persistent_workers = pin_memory, persistent_workers
        if collate_fn is not None and not callable(collate_fn):
            raise ConfigError(f"collate_fn must be callable, not {collate_fn!r}")
        if num_workers is not None:
            _whole("num_workers", num_workers, 0, _MAX_WORKERS)
        if threads is not None:
            _whole("threads", threads, 0, _MAX_THREADS)
        whole = SuperMix(dataset) if type(dataset) is ConcatDataset else whole_of(dataset)
        # Receiving releases the GIL and uses hardly any CPU, so threads are as fast as processes and need no
        # transfer. Processes are for code that uses global random number generators.
        processes, why = choose_processes(whole, collate_fn, threads, for_workers)
        mover = mover_to(device)
        self._own_sampler: Any = None  # closed with the loader
        self.sampler: Any = sampler
        if sampler is not None:
            _check_agreement(sampler, dataset, batch_size, for_sampler, shuffle=shuffle, drop_last=drop_last)
        elif batch_size is None and not batch_sampled:
            raise ConfigError("a SuperLoader needs a sampler, or a batch_size to create one")
        else:
            from superdl.sampler import SuperSampler

            self._own_sampler = self.sampler = SuperSampler(
                dataset, batch_size=batch_size, shuffle=shuffle or False, drop_last=drop_last, **for_sampler
            )
        self._latest: _Progress | None = None
        load = Load(
            whole,
            collate_fn,
            collates_samples=batch_size is not None or batch_sampled,
            # A wrapper may inspect the batches, so it needs finished ones.
            finished_elsewhere=type(whole) is SuperDataset and mover.finishes and collate_fn is None,
        )
        self._readers: ReadingThreads | WorkerProcesses
        if processes:
            self.num_workers = default_workers() if num_workers is None else num_workers
            pins = mover.pins or (pin_memory and torch.accelerator.is_available())
            options: dict[str, Any] = {"pin_memory": pins}
            if self.num_workers:  # a DataLoader only accepts the others with workers
                ahead = max(2, -(-prefetch // self.num_workers))
                options |= {"persistent_workers": persistent_workers, "prefetch_factor": ahead, **for_workers}
            self._readers = WorkerProcesses(load, mover, self.num_workers, options)
            readers = f"worker processes: {self.num_workers}"
        else:
            self.num_workers = num_workers or 0
            # In measurements, three threads used a fifth more CPU than one.
            count = threads or min(max(1, self.num_workers), prefetch + 1, _MAX_THREADS)
            self._readers = ReadingThreads(load, mover, count, prefetch)
            readers = f"threads: {count}"
        self._by = f"{readers}, since {why}"
        _LOG.info("a SuperLoader of %r reads with %s", dataset, self._by)
        weakref.finalize(self, self._readers.stop)

    @property
    def batch_size(self) -> int | None:
        """Return the samples per batch on this rank, or ``None`` if the sampler does not define them."""
        size: int | None = getattr(self.sampler, "batch_size", None)
        return size

    @property
    def drop_last(self) -> bool:
        """Return whether the sampler drops the incomplete last global batch."""
        return bool(getattr(self.sampler, "drop_last", False))

    @property
    def bad_samples(self) -> tuple[BadSample, ...]:
        """Return the samples that were skipped or replaced so far; see :class:`SuperDataset`."""
        return tuple(getattr(self.sampler, "bad_samples", ()))

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration with the sampler's ``set_epoch``.

        Raises:
            UsageError: the sampler has no ``set_epoch``.
        """
        self._sampler_method("set_epoch")(epoch)

    def __repr__(self) -> str:
        return (
            f"<SuperLoader: {len(self)} batches of {self.batch_size}, reads with {self._by}; "
            f"of {self.dataset!r} by {self.sampler!r}>"
        )

    @property
    def batch_sampler(self) -> None:
        """Return ``None``, like a DataLoader with ``batch_size=None``. Lightning reads this property."""
        return None

    def __len__(self) -> int:
        """Return the number of batches per epoch on this rank."""
        return len(self.sampler)

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over the next epoch, which begins when the first batch is requested."""
        return _Pass(self)

    def state_dict(self) -> dict[str, Any]:
        """Return the training loop's position after the last batch delivered in the latest iteration.

        Raises:
            UsageError: the sampler has no ``state_dict``.
        """
        save, latest = self._sampler_method("state_dict"), self._latest
        consumed = {} if latest is None or latest.finished else {"batches_consumed": latest.taken}
        state: dict[str, Any] = save(**consumed)
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next iteration continue after the last batch delivered before ``state`` was saved.

        Raises:
            ConfigError: the state belongs to a different plan.
            UsageError: the sampler has no ``load_state_dict``.
        """
        self._sampler_method("load_state_dict")(state)
        self._latest = None

    def close(self) -> None:
        """Stop threads and processes, and close the sampler if the loader created it. Idempotent.

        Threads finish their current batches. The loader cannot be iterated over afterwards.
        """
        self._readers.stop()
        if self._own_sampler is not None:
            self._own_sampler.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def multiprocessing_context(self) -> NoReturn:
        """Raise ``UsageError``, since code that reads this would build a DataLoader without the plan."""
        raise UsageError(
            "a SuperLoader cannot be converted to a DataLoader, as Accelerate's skip_first_batches tries. "
            "Save loader.state_dict() and pass it to loader.load_state_dict(), which skips in constant time"
        )

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            "a SuperLoader owns threads or processes, so it cannot be pickled or copied. Pickle its dataset, "
            "and create a loader from it in each process. To resume, save loader.state_dict()"
        )

    def _sampler_method(self, name: str) -> Any:
        method = getattr(self.sampler, name, None)
        if method is None:
            kind = type(self.sampler).__name__
            raise UsageError(f"SuperLoader.{name} needs a sampler with that method, but {kind} has none")
        return method


@dataclass(slots=True)
class _Progress:
    taken: int = 0
    finished: bool = False


class _Pass(Iterator[Any]):
    """One iteration over a loader. It begins when the first batch is requested."""

    def __init__(self, loader: SuperLoader) -> None:
        self._loader = loader
        self._progress = _Progress()
        self._reading: ThreadPass | ProcessPass | None = None
        self._none_good: BaseException | None = None  # raised if no batch has a good sample

    def __next__(self) -> Any:
        loader = self._loader
        if self._reading is None:  # from now on this pass defines the loader's state
            self._reading = loader._readers.begin(loader.sampler)  # noqa: SLF001 # a part of SuperLoader
            loader._latest = self._progress  # noqa: SLF001 # the same
        while True:
            try:
                item = self._reading.take()
            except BatchLeftOut as left_out:
                self._none_good = left_out.__cause__ or self._none_good
                continue
            except StopIteration:
                break
            self._progress.taken = self._reading.passed
            return item
        none_good, self._none_good = self._none_good, None
        # Otherwise an epoch of only bad samples would look like an empty dataset.
        if none_good is not None and not self._progress.taken:
            raise none_good
        self._progress.finished = True
        raise StopIteration


def _whole(name: str, value: object, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ConfigError(f"{name} must be an integer from {least} to {most}, not {value!r}")
    return value


def _check_agreement(
    sampler: object,
    dataset: object,
    batch_size: int | None,
    for_sampler: dict[str, Any],
    *,
    shuffle: bool | None,
    drop_last: bool,
) -> None:
    if isinstance(sampler, int):
        raise ConfigError(f"the second argument must be a sampler, not {sampler}. Pass batch_size={sampler}")
    if isinstance(dataset, Subset) and getattr(sampler, "given_dataset", dataset) is not dataset:
        raise ConfigError(
            "this sampler was created for another dataset. For a Subset, create it from the same Subset, as "
            f"in {type(sampler).__name__}(subset, ...)"
        )
    kind, own_size = type(sampler).__name__, getattr(sampler, "batch_size", None)
    if batch_size not in (None, own_size):
        raise ConfigError(
            f"batch_size={batch_size} contradicts the {kind}, whose batches have {own_size} samples. Omit "
            "batch_size or the sampler"
        )
    given = ["shuffle"] if shuffle else []
    given += ["drop_last"] if drop_last and not getattr(sampler, "drop_last", False) else []
    given += sorted(for_sampler)
    if given:
        raise ConfigError(
            f"{', '.join(given)} must be set on the {kind}, not on the loader. Move these arguments there, "
            "or omit the sampler"
        )
