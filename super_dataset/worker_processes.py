"""The worker processes of a ``SuperLoader``, run by torch's ``DataLoader``."""

from __future__ import annotations

import os
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from superdl.super_dataset.memory.batch_memory import map_tensors, memory_here, receiving_into
from superdl.super_dataset.reading.bad_samples import LEAVES_OUT, BatchLeftOut
from superdl.super_dataset.splitting import unknown
from superdl.super_wire.errors import UsageError
from superdl.super_wire.host import usable_cores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from superdl.super_dataset.memory.batch_memory import Memory, Mover

# DataLoader arguments that apply to worker processes.
_WORKER_OPTIONS = frozenset(
    {"multiprocessing_context", "pin_memory_device", "prefetch_factor", "timeout", "worker_init_fn"}
)

_MAX_DEFAULT = 16
_CLOSED = "this SuperLoader is closed. Create a new one"


def default_workers() -> int:
    """Return the default number of processes: one per core of this rank's share of the host, up to 16."""
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return min(max(1, usable_cores() // (int(ranks) if ranks.isdecimal() else 1)), _MAX_DEFAULT)


def choose_processes(
    dataset: Any, collate_fn: Any, threads: int | None, worker_options: Mapping[str, Any]
) -> tuple[bool, str]:
    """Return whether to use worker processes instead of threads, and the reason."""
    if threads is not None:
        return not threads, f"threads={threads} was passed"
    if "worker_init_fn" in worker_options:
        return True, "worker_init_fn requires them"
    name = getattr(dataset, "may_use_rng", type(dataset).__name__) or unknown(collate_fn)
    if name:
        return True, f"{name} may use random number generators that threads share"
    return False, "nothing uses random number generators that threads share"


def pop_worker_options(given: dict[str, Any]) -> dict[str, Any]:
    """Pop a DataLoader's worker options and return those that are set. ``generator`` becomes ``seed``."""
    if given.get("batch_sampler") is None:
        given.pop("batch_sampler", None)
    generator = given.pop("generator", None)
    if generator is not None:
        given.setdefault("seed", (generator.initial_seed() + 2**63) % 2**64 - 2**63)
    options = {name: given.pop(name) for name in _WORKER_OPTIONS & given.keys()}
    return {name: value for name, value in options.items() if value}


@dataclass(frozen=True, slots=True)
class Load:
    """Loads the batch for a sampler's item. Picklable if its parts are."""

    dataset: Any
    collate_fn: Callable[[Any], Any] | None
    collates_samples: bool  # collate_fn gets a list of the batch's samples, else the dataset's item
    finished_elsewhere: bool  # the batch may be an Unfinished

    def __call__(self, ref: Any) -> Any:
        """Return the batch. Raises ``RuntimeError`` for ``StopIteration``, which would end the epoch."""
        try:
            if self.collate_fn is None:
                return self.dataset[ref]
            if self.collates_samples:
                return self.dataset.collated(ref, self.collate_fn)
            return self.collate_fn(self.dataset[ref])
        except StopIteration as error:
            raise RuntimeError("the dataset, its transform or collate_fn raised StopIteration") from error


class WorkerProcesses:
    """``count`` processes that read a loader's batches. If ``count`` is 0, this process reads them."""

    def __init__(self, load: Load, mover: Mover, count: int, options: dict[str, Any]) -> None:
        self.mover = mover
        self._latest: Callable[[], ProcessPass | None] = lambda: None
        self._loader: DataLoader[Any] | None = DataLoader(
            _Reading(load, None if count else mover.memory),
            sampler=_RefsOfPass(self),
            batch_size=None,
            num_workers=count,
            collate_fn=_unchanged,
            **options,
        )
        self._pid = os.getpid()

    def begin(self, sampler: Any) -> ProcessPass:
        """Return a new pass. With persistent workers, earlier passes can no longer be used."""
        loader = self.check()
        previous = self.latest()
        if previous is not None and loader.persistent_workers:
            previous.batches = None
        current = ProcessPass(self, iter(sampler))
        self._latest = weakref.ref(current)
        # The DataLoader's sampler looks up the latest pass as soon as this starts to iterate.
        current.batches = iter(loader)
        return current

    def latest(self) -> ProcessPass | None:
        """Return the latest pass, or ``None`` if it was dropped."""
        return self._latest()

    def check(self) -> DataLoader[Any]:
        """Return the DataLoader. Raises :class:`UsageError` after :meth:`stop` and in a forked process."""
        if self._loader is None:
            raise UsageError(_CLOSED)
        if self._pid != os.getpid():
            raise UsageError("use a SuperLoader only in the process that created it, which owns its workers")
        return self._loader

    def stop(self) -> None:
        """Stop the processes. Idempotent."""
        latest, self._loader = self.latest(), None
        if latest is not None:
            latest.batches = None


class ProcessPass:
    """One pass over a sampler. ``passed`` counts the batches that were taken or failed."""

    def __init__(self, processes: WorkerProcesses, refs: Iterator[Any]) -> None:
        self.passed = 0
        self.refs = refs
        self.batches: Iterator[Any] | None = None
        self.error: Exception | None = None  # the sampler's, raised at the end of the pass
        self._processes = processes

    def take(self) -> Any:
        """Return the next batch, ready for use, or raise the error that prevented it."""
        self._processes.check()
        if self.batches is None:
            raise UsageError("another pass over this SuperLoader has begun and now uses its workers")
        try:
            batch = next(self.batches, None)
        except Exception:
            self.passed += 1
            raise
        if batch is None:
            raise self.error or StopIteration
        self.passed += 1
        if batch.left_out:
            raise BatchLeftOut from batch.cause
        mover = self._processes.mover
        return mover.receive(mover.send(batch.item))


class _RefsOfPass:
    """The DataLoader's sampler, which yields the latest pass's items."""

    def __init__(self, processes: WorkerProcesses) -> None:
        # A weak reference, so that workers end as soon as the loader is dropped, even if an error's
        # traceback still refers to everything else.
        self._processes = weakref.ref(processes)

    def __iter__(self) -> Iterator[Any]:
        processes = self._processes()
        latest = None if processes is None else processes.latest()
        return iter(()) if latest is None else _refs_of(weakref.ref(latest))


def _refs_of(latest: Callable[[], ProcessPass | None]) -> Iterator[Any]:
    while (current := latest()) is not None:
        try:
            ref = next(current.refs)
        except StopIteration:
            return
        except Exception as error:  # noqa: BLE001 # the DataLoader would raise it before pending batches
            current.error = error
            return
        del current  # hold no pass between items
        yield ref


@dataclass(slots=True)
class _Reply:
    """A worker's reply: an item, or a skipped batch, with its cause if it is the epoch's first batch."""

    item: Any = None
    left_out: bool = False
    cause: BaseException | None = None

    def pin_memory(self) -> _Reply:
        self.item = map_tensors(self.item, torch.Tensor.pin_memory, finish=False)
        return self


class _Reading(Dataset[Any]):
    def __init__(self, load: Load, memory: Memory | None) -> None:
        self._load, self._memory = load, memory

    def __getitem__(self, ref: Any) -> _Reply:
        memory = self._memory if self._memory is not None and get_worker_info() is None else memory_here()
        leaves_out = LEAVES_OUT.set(True)
        try:
            with receiving_into(memory, finished_elsewhere=self._load.finished_elsewhere):
                return _Reply(self._load(ref))
        except BatchLeftOut as error:
            return _Reply(left_out=True, cause=error.__cause__)
        finally:
            LEAVES_OUT.reset(leaves_out)


def _unchanged(item: Any) -> Any:
    """Return the item unchanged. A DataLoader's own ``collate_fn`` would turn tuples into lists."""
    return item
