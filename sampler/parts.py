"""A sampler's parts (one per dataset and job), their iterator, and their cleanup at exit."""

from __future__ import annotations

import atexit
import logging
import os
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
    from collections.abc import Iterable

    from superdl.sampler.arguments import Arguments
    from superdl.sampler.prefetch import Cursor, PlanPosition, PrefetchBuffer
    from superdl.sampler.stats import SamplerStats

_LOG = logging.getLogger(__name__)

_MIX_VERSION = 1
_EXIT_S = 1.0

# Process ids of the openers by coordinator, job and rank. A forked child closes no job.
_open_jobs: dict[tuple[str, str, int], int] = {}
_pagers: weakref.WeakSet[Pager] = weakref.WeakSet()


class Part:
    """One dataset's job on this rank, with its thread and states. Raises what ``SuperSampler`` raises."""

    def __init__(
        self, arguments: Arguments, *, coordinator: str | None, job: str | None, in_order: bool
    ) -> None:
        dataset, spec, rank = arguments.dataset, arguments.spec, arguments.rank
        run = run_id()
        address = dataset.coordinator if coordinator is None else coordinator
        client = client_of(address, run, alone=arguments.num_replicas == 1)
        listed = getattr(dataset, "listed_as", None)
        session = Session(client, dataset, spec, run=run, job=job, ranks=(rank, arguments.num_replicas))
        try:
            check_listing(spec.draws, listed, session.binding.fingerprint, dataset.source)
            dataset.ping_cache(session.binding.cache)
        except BaseException:
            session.close()  # nothing will read this job's samples
            raise
        dataset.coordinator = address
        if not client.alone:
            _open_jobs[client.address, session.job, spec.rank] = os.getpid()
        if rank == 0:
            inform_user(client.address, session.kept)
        self.dataset, self.spec, self.session, self.order = dataset, spec, session, arguments.order
        self.coordinator = client.address
        self.size = session.binding.size
        if self.order is not None:
            self.order.size = self.size
        self.checkpoint = Checkpoint(
            spec,
            session.binding.fingerprint,
            session.batches_per_epoch,
            in_order=in_order,
            order=self.order,
        )
        self.pager = Pager(session, client, rank=spec.rank, in_order=in_order)
        _pagers.add(self.pager)
        # A sampler that is dropped unclosed must not leave its thread behind. Its job's lease expires.
        weakref.finalize(self, self.pager.stop_soon)

    @property
    def job(self) -> str:
        """Return the job id (32 hex digits)."""
        return self.session.job

    def __len__(self) -> int:
        return self.session.batches_per_epoch if self.order is None else len(self.order)

    def __repr__(self) -> str:
        draws = self.spec.draws
        drawn = "" if draws is None else f"{draws.length(self.size):,} draws of {self.size:,} samples, "
        return f"{self.dataset.source} (job {self.job}): {drawn}{len(self)} batches of {self.spec.batch_size}"

    def begin(self, at: PlanPosition) -> PrefetchBuffer:
        """Start an iteration at a plan position, drawing the epoch first if the user passed a sampler."""
        if self.order is not None:
            self.session.begin_epoch(at.epoch, at.position, self.order.draw(at.epoch))
        return self.pager.begin(at)

    def job_stats(self) -> SamplerStats:
        """Return the coordinator's counters for the job."""
        return self.session.stats()

    def close(self) -> None:
        """Stop the thread and close the job on this rank."""
        _open_jobs.pop((self.coordinator, self.job, self.spec.rank), None)
        self.pager.stop()
        self.dataset.name_bad_samples()
        try:
            self.session.close()
        except SuperError as error:  # best effort, since a silent job's lease expires anyway
            _LOG.warning("job %s could not be closed: %s", self.job, error)


class Parts(list[Part]):
    """The parts of one sampler. ``mixes`` is true for a mix, even if it has a single dataset."""

    def __init__(self, parts: Iterable[Part], *, mixes: bool) -> None:
        super().__init__(parts)
        self.mixes = mixes

    def state_of(self, at: PlanPosition) -> dict[str, Any]:
        """Return the state for a plan position that all parts share."""
        states = [part.checkpoint.state_of(at) for part in self]
        return {"version": _MIX_VERSION, "mix": states} if self.mixes else states[0]

    def position_in(self, state: Mapping[str, Any]) -> PlanPosition:
        """Return the position saved in ``state``. Raises the same errors as ``Checkpoint.position_in``."""
        if not self.mixes:
            return self[0].checkpoint.position_in(state)
        states = state.get("mix") if isinstance(state, Mapping) else None
        if not isinstance(states, list) or len(states) != len(self) or state.get("version") != _MIX_VERSION:
            raise ConfigError(f"this is not a SuperSampler state for a mix of {len(self)} datasets")
        # The parts have equally many batches and advance together.
        positions = {part.checkpoint.position_in(own) for part, own in zip(self, states, strict=True)}
        if len(positions) > 1:
            raise ConfigError("cannot resume this mix: its datasets were saved at different positions")
        return positions.pop()

    def prepare(self, at: PlanPosition) -> None:
        """Request the first page of a future iteration without waiting for it."""
        for part in self:
            part.pager.prepare(at)


class PlanIterator(Iterator[BatchRef]):
    """Iterator over the ``BatchRef`` s of an epoch, in plan order unless the sampler has ``in_order=False``.

    For a mix, it yields ``MixedRef`` s, which combine one batch per dataset.
    """

    def __init__(self, cursor: Cursor, parts: Parts) -> None:
        self._cursor = cursor
        self._parts = parts
        # With batch_size=None, DataLoader creates an iterator that it never uses, so nothing begins here.
        self._pid = os.getpid()
        self._loaded: PlanPosition | None = None
        self._buffers: list[PrefetchBuffer] = []  # one per part, once the iteration has begun
        self._taken: list[BatchRef] = []  # the next batch's parts so far
        self._warned = False

    @property
    def epoch(self) -> int:
        """Return this iteration's epoch or, before its first batch, the epoch that it would begin now."""
        return self._current().epoch

    @property
    def position(self) -> int:
        """Return the epoch's first undelivered position."""
        return self._current().position

    def _current(self) -> PlanPosition:
        if self._buffers:  # while a batch is incomplete, its last part has delivered nothing
            return self._buffers[-1].delivered.position_after()
        return self._loaded or self._cursor.peek()

    def state_dict(self) -> dict[str, Any]:
        """Return this iteration's position as a small JSON-compatible dict."""
        return self._parts.state_of(self._current())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume at the position in ``state``, in constant time, regardless of any batches already delivered.

        The first page is requested in the background. Once the first batch is delivered, the sampler's next
        epoch is later than the state's.

        Raises:
            ConfigError: the state belongs to a different plan. The message lists the differences.
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
        # A DataLoader also calls this after the end of the epoch.
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
        requested, epoch = self._cursor.requested_epoch, taken[0].epoch
        if requested not in (None, epoch) and not self._warned:
            self._warned = True
            _LOG.warning(
                "set_epoch(%d) was called during an iteration of epoch %d, which stays in that epoch. A "
                "DataLoader with workers begins as soon as iter() creates its iterator, so call set_epoch "
                "earlier (Lightning does not when it resumes at the end of an epoch; see "
                "docs/frameworks.md)",
                requested,
                epoch,
            )
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

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            "a SuperSampler's iterator cannot be pickled, since it uses a thread. Its batches can"
        )


def check_process(pid: int) -> None:
    """Raise ``UsageError`` unless ``pid`` is this process's id."""
    if pid != os.getpid():
        raise UsageError(
            "a SuperSampler and its iterators only work in the process that created them. Create one in each "
            "process that trains"
        )


@atexit.register
def _clean_up() -> None:
    # Stop threads first: one inside grpc can abort the process, and would reopen its job.
    for pager in [pager for pager in _pagers if pager.pid == os.getpid()]:
        pager.stop()
    jobs = [job for job, pid in _open_jobs.items() if pid == os.getpid()]
    if not jobs:
        return
    from superdl.super_wire import coordinator_pb2 as pb

    until_s = time.monotonic() + _EXIT_S
    failed: set[str] = set()
    for address, job, rank in jobs:
        left_s = until_s - time.monotonic()
        if address in failed or left_s <= 0:
            continue
        # Best effort. Otherwise a shared coordinator would have to wait for the job's lease to expire.
        single_try = Patience(attempts=1, total_s=left_s, deadline_s=left_s, backoff_s=0.0)
        try:
            Client(address).call("CloseJob", pb.CloseJobRequest(job=job, rank=rank), single_try)
        except SuperError as error:
            _LOG.debug("job %s could not be closed at exit: %s", job, error)
            failed.add(address)
