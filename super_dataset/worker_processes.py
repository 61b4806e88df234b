"""Worker processes for a ``SuperLoader``, run by torch's ``DataLoader``."""

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

# Arguments of a DataLoader that apply to worker processes.
_WORKER_OPTIONS = frozenset(
    {"multiprocessing_context", "pin_memory_device", "prefetch_factor", "timeout", "worker_init_fn"}
)

_MAX_USEFUL = 16
_CLOSED = "this SuperLoader was closed: create a new one"


def useful_workers() -> int:
    """Return the number of processes to use: one per core in this rank's share of the host, up to 16."""
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return min(max(1, usable_cores() // (int(ranks) if ranks.isdecimal() else 1)), _MAX_USEFUL)


def choose_processes(
    dataset: Any, collate_fn: Any, threads: int | None, worker_options: Mapping[str, Any]
) -> tuple[bool, str]:
    """Choose between worker processes (true) and threads, and return the reason."""
    if threads is not None:
        return not threads, f"threads={threads} was passed"
    if "worker_init_fn" in worker_options:
        return True, "worker_init_fn requires them"
    user = getattr(dataset, "may_use_rng", type(dataset).__name__) or unknown(collate_fn)
    if user:
        return True, f"{user} may use random number generators that threads share"
    return False, "nothing uses random number generators that threads share"


def pop_worker_options(given: dict[str, Any]) -> dict[str, Any]:
    """Pop the DataLoader worker options and return those set. A ``generator`` becomes a ``seed``."""
    if given.get("batch_sampler") is None:
        given.pop("batch_sampler", None)
    generator = given.pop("generator", None)
    if generator is not None:
        given.setdefault("seed", (generator.initial_seed() + 2**63) % 2**64 - 2**63)
    options = {name: given.pop(name) for name in _WORKER_OPTIONS & given.keys()}
    return {name: value for name, value in options.items() if value}


@dataclass(frozen=True, slots=True)
class Load:
    """The function that loads a batch for a sampler's item. Picklable if its parts are."""

    dataset: Any
    collate_fn: Callable[[Any], Any] | None
    collates_samples: bool  # collate_fn takes the list of a batch's samples, else the dataset's item.
    finished_elsewhere: bool  # the batch may be an Unfinished.

    def __call__(self, ref: Any) -> Any:
        """Return the batch. A ``StopIteration`` becomes a ``RuntimeError``."""
        try:
            if self.collate_fn is None:
                return self.dataset[ref]
            if self.collates_samples:
                return self.dataset.collated(ref, self.collate_fn)
            return self.collate_fn(self.dataset[ref])
        except StopIteration as error:
            # StopIteration would end the epoch.
            raise RuntimeError("the dataset, its transform or collate_fn raised StopIteration") from error


class WorkerProcesses:
    """The ``count`` processes that read for a loader's passes. 0 means to read in this process."""

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
        """Return a new pass. With persistent workers, an earlier one fails from now on."""
        loader = self.check()
        before = self.latest()
        if before is not None and loader.persistent_workers:
            before.batches = None
        begun = ProcessPass(self, iter(sampler))
        self._latest = weakref.ref(begun)
        # The sampler of the DataLoader looks up the latest pass when this begins to iterate.
        begun.batches = iter(loader)
        return begun

    def latest(self) -> ProcessPass | None:
        """Return the latest pass, unless it was dropped."""
        return self._latest()

    def check(self) -> DataLoader[Any]:
        """Raise :class:`UsageError` after :meth:`stop`, and in a fork."""
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
    """One pass. ``passed`` is the number of batches that were taken or failed."""

    def __init__(self, processes: WorkerProcesses, refs: Iterator[Any]) -> None:
        self.passed = 0
        self.refs = refs
        self.batches: Iterator[Any] | None = None
        # The sampler's error, raised at the end of the pass.
        self.trouble: Exception | None = None
        self._processes = processes

    def take(self) -> Any:
        """Return the next batch, ready for use, or raise its error in its place."""
        self._processes.check()
        if self.batches is None:
            raise UsageError("another pass of this SuperLoader has begun and now uses its workers")
        try:
            batch = next(self.batches, None)
        except Exception:
            self.passed += 1
            raise
        if batch is None:
            # An error of the sampler ends the pass.
            raise self.trouble or StopIteration
        self.passed += 1
        if batch.left_out:
            raise BatchLeftOut from batch.cause
        mover = self._processes.mover
        return mover.receive(mover.send(batch.item))


class _RefsOfPass:
    """A sampler for a DataLoader that yields the items of the latest pass."""

    def __init__(self, processes: WorkerProcesses) -> None:
        # Weak, so that workers end as soon as the loader is dropped, even if an error's traceback still
        # refers to everything.
        self._processes = weakref.ref(processes)

    def __iter__(self) -> Iterator[Any]:
        processes = self._processes()
        latest = None if processes is None else processes.latest()
        return iter(()) if latest is None else _refs_of(weakref.ref(latest))


def _refs_of(latest: Callable[[], ProcessPass | None]) -> Iterator[Any]:
    while (begun := latest()) is not None:
        try:
            ref = next(begun.refs)
        except StopIteration:
            return
        except Exception as error:  # noqa: BLE001 # DataLoader would raise it before pending batches
            begun.trouble = error
            return
        del begun  # hold no pass between items
        yield ref


@dataclass(slots=True)
class _Reply:
    """A worker's reply: an item, or a skipped batch, with the first cause in the epoch."""

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
    """Return the item as it is. A DataLoader's own ``collate_fn`` turns tuples into lists."""
    return item
