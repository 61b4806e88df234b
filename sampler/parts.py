"""A sampler's parts, one per dataset and job, a pass over them, and their cleanup at exit."""

from __future__ import annotations

import _thread
import atexit
import logging
import os
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from superdl.sampler.arguments import check_listing
from superdl.sampler.checkpoint import Checkpoint
from superdl.sampler.distributed import run_id
from superdl.sampler.embedded.embedded import inform_user
from superdl.sampler.pages import Pager
from superdl.sampler.registration import client_of
from superdl.sampler.rpc.client import Client, Patience
from superdl.sampler.session import Session
from superdl.super_wire.batch_ref import BatchRef, MixedRef
from superdl.super_wire.errors import ConfigError, SuperError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from superdl.sampler.arguments import Description
    from superdl.sampler.prefetch import Cursor, PlanPosition, PrefetchBuffer
    from superdl.sampler.stats import SamplerStats

_LOG = logging.getLogger(__name__)

_MIX_VERSION = 1
_EXIT_S = 1.0

# The process that opened each job, by coordinator, job and rank. A forked child sends nothing.
_open_jobs: dict[tuple[str, str, int], int] = {}
_pagers: weakref.WeakSet[Pager] = weakref.WeakSet()
_background: set[tuple[int, threading.Event]] = set()  # pending tasks, with their process ids


class Part:
    """One dataset's job on this rank, with its thread and states. Raises as ``SuperSampler`` does."""

    def __init__(
        self, plan: Description, *, coordinator: str | None, job: str | None, in_order: bool
    ) -> None:
        dataset, spec = plan.dataset, plan.spec
        run = run_id()
        address = dataset.coordinator if coordinator is None else coordinator
        client = client_of(address, run, alone=plan.num_replicas == 1)
        listed = getattr(dataset, "listed_as", None)
        session = Session(client, dataset, spec, run=run, job=job, ranks=(plan.rank, plan.num_replicas))
        try:
            check_listing(spec.draws, listed, session.binding.fingerprint, dataset.source)
            dataset.ping_cache(session.binding.cache)
        except BaseException:
            session.close()  # nothing will read this job's samples
            raise
        dataset.coordinator = address
        if not client.alone:
            _open_jobs[client.address, session.job, spec.rank] = os.getpid()
        if plan.rank == 0:
            inform_user(client.address, session.kept)
        self.dataset, self.spec, self.session, self.order = dataset, spec, session, plan.order
        self.coordinator = client.address
        self.size = session.binding.size
        if self.order is not None:
            self.order.size = self.size
        self.checkpoint = Checkpoint(
            *(spec, session.binding.fingerprint, session.batches_per_epoch),
            in_order=in_order,
            order=self.order,
        )
        self.pager = Pager(session, client, rank=spec.rank, in_order=in_order)
        _pagers.add(self.pager)
        # A dropped sampler must not leave its thread behind.
        weakref.finalize(self, self.pager.stop_soon)

    @property
    def job(self) -> str:
        """Return the job's id."""
        return self.session.job

    def __len__(self) -> int:
        return self.session.batches_per_epoch if self.order is None else len(self.order)

    def __repr__(self) -> str:
        draws = self.spec.draws
        drawn = "" if draws is None else f"{draws.length(self.size):,} draws of {self.size:,} samples, "
        return f"{self.dataset.source} (job {self.job}): {drawn}{len(self)} batches of {self.spec.batch_size}"

    def begin(self, at: PlanPosition) -> PrefetchBuffer:
        """Start an iteration at a plan position. If the user passed a sampler, draw its order first."""
        if self.order is not None:
            self.session.begin_epoch(at.epoch, at.position, self.order.draw(at.epoch))
        return self.pager.begin(at)

    def job_stats(self) -> SamplerStats:
        """Return the coordinator's counters for the job."""
        return self.session.stats()

    def close(self) -> None:
        """Close the job on this rank and stop the thread."""
        _open_jobs.pop((self.coordinator, self.job, self.spec.rank), None)
        self.pager.stop()
        self.dataset.name_bad_samples()
        try:
            self.session.close()
        except SuperError as error:  # best effort: the lease of a silent job expires anyway
            _LOG.warning("job %s could not be closed: %s", self.job, error)


class Parts(list[Part]):
    """The parts of one sampler. ``mixes`` is true for a mix, even of a single dataset."""

    def __init__(self, parts: Iterable[Part], *, mixes: bool) -> None:
        super().__init__(parts)
        self.mixes = mixes

    def state_of(self, at: PlanPosition) -> dict[str, Any]:
        """Return a position in the plan, the same in all parts, as a state."""
        states = [part.checkpoint.state_of(at) for part in self]
        return {"version": _MIX_VERSION, "mix": states} if self.mixes else states[0]

    def position_in(self, state: Mapping[str, Any]) -> PlanPosition:
        """Return the position in ``state``. Raises as ``Checkpoint.position_in`` does."""
        states = self._states_in(state) if self.mixes else [state]
        # All parts of a mix have the same number of batches and advance together.
        positions = [part.checkpoint.position_in(own) for part, own in zip(self, states, strict=True)]
        return positions[0]

    def _states_in(self, state: Mapping[str, Any]) -> list[Any]:
        states = state.get("mix") if isinstance(state, Mapping) else None
        if not isinstance(states, list) or len(states) != len(self) or state.get("version") != _MIX_VERSION:
            raise ConfigError(f"this is not the state of a SuperSampler of a mix of {len(self)} datasets")
        names = ("epoch", "position", "given_ahead")
        positions = [isinstance(own, Mapping) and [own.get(name) for name in names] for own in states]
        if any(other != positions[0] for other in positions):
            raise ConfigError("cannot resume this mix: its datasets were saved at different positions")
        return states

    def prepare(self, at: PlanPosition) -> None:
        """Request the first page of a later iteration, without waiting."""
        for part in self:
            part.pager.prepare(at)


class PlanIterator(Iterator[BatchRef]):
    """Iterator over ``BatchRef``, in plan order unless its sampler was created with ``in_order=False``.

    For a mix it yields ``MixedRef``, each made of one batch per dataset.
    """

    def __init__(self, cursor: Cursor, parts: Parts) -> None:
        self._cursor = cursor
        self._parts = parts
        # With batch_size=None, DataLoader creates an iterator that it never uses, so nothing begins here.
        self._pid = os.getpid()
        self._loaded: PlanPosition | None = None
        self._buffers: list[PrefetchBuffer] = []  # of each part, once the pass has begun
        self._taken: list[BatchRef] = []  # of the next batch, until each part has given its own
        self._warned = False

    @property
    def epoch(self) -> int:
        """Return the epoch of this pass. Before its first batch, that is the epoch it would begin now."""
        return self._current().epoch

    @property
    def position(self) -> int:
        """Return the first position of the epoch that has not been delivered yet."""
        return self._current().position

    def _current(self) -> PlanPosition:
        if self._buffers:  # while a batch is incomplete, its last part has delivered nothing
            return self._buffers[-1].delivered.position_after()
        return self._loaded or self._cursor.peek()

    def state_dict(self) -> dict[str, Any]:
        """Return the position of this pass as a small JSON-compatible dict."""
        return self._parts.state_of(self._current())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume the pass that produced ``state``, whatever this one has delivered, in constant time.

        The first page is requested in the background. When the first batch is requested, the sampler's next
        epoch moves past that of the state.

        Raises:
            ConfigError: the state belongs to another plan; the message lists the differences.
            UsageError: this is not the process that created the sampler, or the sampler is closed.
        """
        check_process(self._pid)
        at = self._parts.position_in(state)
        self._parts.prepare(at)
        self._buffers, self._taken, self._loaded = [], [], at

    def __iter__(self) -> PlanIterator:
        return self

    def __next__(self) -> BatchRef:
        check_process(self._pid)
        # A DataLoader also requests batches after the end of the plan.
        for part in self._parts:
            part.dataset.name_bad_samples()
        if not self._buffers:
            self._begin()
        while len(self._taken) < len(self._parts):  # after an error, the next call continues
            number = len(self._taken)
            batch = self._parts[number].pager.take(self._buffers[number])
            if batch is None:
                raise StopIteration
            self._taken.append(batch)
        taken, self._taken = self._taken, []
        named, epoch = self._cursor.named, taken[0].epoch
        if named not in (None, epoch) and not self._warned:
            self._warn_of_another_epoch(named, epoch)
        if not self._parts.mixes:
            return taken[0]
        mixed: Any = MixedRef(tuple((number, ref) for number, ref in enumerate(taken) if len(ref)))
        return mixed  # type: ignore[no-any-return]

    def _begin(self) -> None:
        loaded = self._loaded
        if loaded is not None:
            self._cursor.skip_past(loaded.epoch)
        at = loaded or self._cursor.take()
        try:
            self._buffers = [part.begin(at) for part in self._parts]
        except BaseException:
            if loaded is None:
                self._cursor.move(at)  # the next attempt begins the same epoch
            raise

    def _warn_of_another_epoch(self, named: int | None, epoch: int) -> None:
        """Warn once that an epoch was set after an iteration of another had begun."""
        self._warned = True
        _LOG.warning(
            "set_epoch(%d) was called during an iteration of epoch %d, which stays in that epoch. A "
            "DataLoader with workers begins as soon as iter() creates its iterator, so set_epoch must be "
            "called earlier (Lightning does not when it resumes at the end of an epoch; see "
            "docs/frameworks.md)",
            named,
            epoch,
        )

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            "an iterator of a SuperSampler uses a thread and cannot be pickled, but its batches can"
        )


def check_process(pid: int) -> None:
    """Raise ``UsageError`` unless this is process ``pid``, which created the sampler."""
    if pid != os.getpid():
        raise UsageError(
            "a SuperSampler and its iterators cannot be used outside the process that created them: create "
            "a sampler in each process that trains"
        )


def in_background(task: Callable[[], None]) -> None:
    """Run ``task`` without waiting for it. At exit, the interpreter waits briefly. For finalizers."""
    entry = os.getpid(), threading.Event()

    def run() -> None:
        try:
            task()
        finally:
            _background.discard(entry)
            entry[1].set()

    _background.add(entry)
    # Finalizers may run anywhere, under any lock, and a threading.Thread takes Python's own locks to start.
    try:
        _thread.start_new_thread(run, ())
    except BaseException:  # at the process limit; there is nothing to wait for at exit
        _background.discard(entry)
        raise


@atexit.register
def _clean_up() -> None:
    # Threads first: one inside grpc can abort the process, and would reopen its job.
    for pager in [pager for pager in _pagers if pager.pid == os.getpid()]:
        pager.stop()
    for pid, done in list(_background):
        if pid == os.getpid():
            done.wait(_EXIT_S)
    if _open_jobs:
        _close_jobs()


def _close_jobs() -> None:
    from superdl.super_wire import coordinator_pb2 as pb

    until_s = time.monotonic() + _EXIT_S
    failed: set[str] = set()
    for (address, job, rank), pid in list(_open_jobs.items()):
        left_s = until_s - time.monotonic()
        if pid != os.getpid() or address in failed or left_s <= 0:
            continue
        # Best effort: otherwise a shared coordinator would treat the job as one that vanished.
        single_try = Patience(attempts=1, total_s=left_s, deadline_s=left_s, backoff_s=0.0)
        try:
            Client(address).call("CloseJob", pb.CloseJobRequest(job=job, rank=rank), single_try)
        except SuperError as error:
            _LOG.debug("job %s could not be closed at exit: %s", job, error)
            failed.add(address)
