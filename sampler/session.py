"""A sampler's session: a registered dataset and an open job, reopened if the coordinator loses them."""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from superdl.sampler.distributed import is_own
from superdl.sampler.registration import binding_of, log_warnings
from superdl.sampler.rpc.client import (
    FIRST_CONTACT,
    LISTING_SILENCE_S,
    RUNNING,
    Client,
    Patience,
    startup_patience,
)
from superdl.sampler.stats import PageCalls, SamplerStats
from superdl.super_wire.draws import ORDER_PART, Draws, pack_numbers
from superdl.super_wire.errors import (
    ConfigError,
    CoordinatorUnreachableError,
    PlanError,
    SourceError,
    StoreError,
    UnknownJobError,
)
from superdl.super_wire.ids import digest128
from superdl.super_wire.store import DirectoryStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from superdl.super_wire.batch_ref import Bindable

_LOG = logging.getLogger(__name__)

# Number of times that one call may reopen an unknown job.
MAX_REOPENS = 5

# Time limit of such a call, not counting time in which a listing makes progress.
REOPENING_S = 180.0

# Counters of identical samplers, keyed by process id too because a fork copies them.
_samplers: defaultdict[tuple[int, bytes, int], Iterator[int]] = defaultdict(itertools.count)


@dataclass(frozen=True, slots=True)
class JobSpec:
    """The plan that a sampler requests; see :class:`superdl.sampler.SuperSampler`.

    ``mix`` lists the number of samples per epoch from each dataset, ``member`` is this dataset's index in
    that list, and ``mix_run`` is the number of consecutive samples from one dataset.
    """

    batch_size: int
    seed: int
    shuffle: bool
    drop_last: bool
    rank: int
    num_replicas: int
    draws: Draws | None = None
    mix: tuple[int, ...] = ()
    member: int = 0
    mix_run: int = 1

    @property
    def is_ordered(self) -> bool:
        """Return whether the user's sampler draws each epoch's order."""
        return self.draws is not None and bool(self.draws.lengths)

    def length(self, size: int) -> int:
        """Return the number of samples per epoch over all ranks, without padding, for this dataset size."""
        if self.mix:
            return sum(self.mix)
        return size if self.draws is None else self.draws.length(size)

    def job_id(self, run: str, fingerprint: bytes, recipe_json: str) -> str:
        """Return a new sampler's job id (32 hex digits).

        All ranks of ``run`` get the same id, unless the user's sampler draws each epoch's order.
        """
        if self.is_ordered:  # orders may differ, even between launches of the same name
            return os.urandom(16).hex()
        numbers = f"{self.batch_size},{self.num_replicas},{self.seed},{self.shuffle:d},{self.drop_last:d}"
        # Ranks do not communicate, so derive the id from the values that they share.
        parts = [run.encode(), fingerprint, recipe_json.encode(), numbers.encode()]
        parts += [self.draws.digest] if self.draws is not None else []
        parts += [f"{self.mix},{self.member}".encode()] if self.mix else []
        parts += [str(self.mix_run).encode()] if self.mix_run > 1 else []
        # A second identical sampler gets a different id. All ranks create their samplers in the same order.
        before = next(_samplers[os.getpid(), digest128(*parts), self.rank])
        return digest128(*parts, *([str(before).encode()] if before else [])).hex()


class Session:
    """A registered dataset and an open job. The constructor raises the same errors as ``SuperSampler``.

    ``binding`` describes the dataset, ``batches_per_epoch`` counts this rank's batches, and ``kept`` is a
    message for users about where the store keeps records.
    """

    def __init__(
        self,
        client: Client,
        dataset: Bindable,
        spec: JobSpec,
        *,
        run: str,
        job: str | None,
        ranks: tuple[int, int] | None = None,
        listing_silence_s: float = LISTING_SILENCE_S,
        reopening_s: float = REOPENING_S,
    ) -> None:
        self._client = client
        self._dataset = dataset
        self._spec = spec
        self.seed = spec.seed
        self.may_be_empty = bool(spec.mix)  # one dataset's part of a mixed batch may be empty
        rank, count = ranks or (spec.rank, spec.num_replicas)
        self.alone = count == 1 and not spec.mix  # whether a training step uses only this batch
        self.is_ordered = spec.is_ordered  # then begin_epoch() sets each epoch's order
        self._orders: dict[int, Draws] = {}
        self._run = run
        self._listing_silence_s = listing_silence_s
        self._reopening_s = reopening_s
        self._lock = threading.Lock()
        self.page_calls = PageCalls()
        with client.hold():
            info, _ = client.register(
                dataset, run, renew=is_own(run), begins=True, silence_s=listing_silence_s
            )
            log_warnings(dataset, info.warnings, rank)
            size, global_batch = spec.length(info.size), spec.batch_size * spec.num_replicas
            if spec.drop_last and global_batch > size:
                raise PlanError(
                    f"batch_size={spec.batch_size} on {spec.num_replicas} ranks makes global batches of "
                    f"{global_batch} samples, but an epoch of {dataset.source} has only {size}. "
                    "drop_last=True drops that incomplete batch, so epochs would be empty. Use a smaller "
                    "batch_size or drop_last=False"
                )
            run = run if job is None else f"job:{job}"
            self.job = spec.job_id(run, info.fingerprint, dataset.recipe.json)
            head = 0, int(self.is_ordered)  # at the end of the undrawn order
            log_warnings(dataset, self._open(info, startup_patience(), head), rank)

    def _open(
        self, info: Any, patience: Patience, head: tuple[int, int], stopped: threading.Event | None = None
    ) -> Sequence[str]:
        """Open the job with this rank at ``head`` (epoch, position), and return the warnings."""
        from superdl.super_wire import coordinator_pb2 as pb

        spec, (epoch, position) = self._spec, head
        self._info = info
        request = pb.OpenJobRequest(
            dataset_id=info.dataset_id,
            job=self.job,
            batch_size=spec.batch_size,
            replicas=spec.num_replicas,
            seed=spec.seed,
            shuffle=spec.shuffle,
            drop_last=spec.drop_last,
            rank=spec.rank,
            epoch=epoch,
            position=position,
        )
        if spec.is_ordered:
            self._add_order(request, epoch, stopped)
        elif spec.draws is not None:
            request.indices, request.weights = spec.draws.packed()
            request.draws, request.repeats = spec.draws.count, spec.draws.repeats
        request.mix.extend(spec.mix)
        request.member, request.mix_run = spec.member, spec.mix_run
        opened = self._client.call("OpenJob", request, patience, stopped=stopped)
        if opened.job != self.job:
            raise ConfigError(f"the coordinator opened job {opened.job!r} instead of {self.job!r}")
        store = readable_store(opened.store, opened.store_id) if self._dataset.reads_straight else ""
        self.binding = binding_of(info, cache=opened.cache, store=store)
        self.batches_per_epoch = int(opened.batches_per_epoch)
        self.kept = str(opened.kept)
        self._dataset.bind(self.binding)
        return tuple(opened.warnings)

    def _add_order(self, request: Any, epoch: int, stopped: threading.Event | None) -> None:
        """Add an epoch's order to the request or, if it is too long, upload it beforehand."""
        from superdl.super_wire import coordinator_pb2 as pb

        draws = self._orders.get(epoch, self._spec.draws or Draws())
        request.batch_size, request.lengths = int(draws.length_array.max()), pack_numbers(draws.lengths)
        parts = draws.packed_order()
        if draws.length(0) <= ORDER_PART:
            ((_, request.indices),) = parts
            return
        for start, indices in parts:
            part = pb.OrderPart(job=self.job, epoch=epoch, start=start, indices=indices)
            self._client.call("SendOrder", part, RUNNING, stopped=stopped)
        request.order_sent = draws.length(0)

    def begin_epoch(self, epoch: int, position: int, draws: Draws) -> None:
        """Set the order that the user's sampler drew for an epoch, and continue at ``position``."""
        # Keep the previous epoch's order, since an iteration of it may still be running.
        latest = {other: order for other, order in list(self._orders.items())[-1:] if other != epoch}
        self._orders = latest | {epoch: draws}
        self._call_reopening(
            lambda end_s: self._open(self._info, RUNNING.until(end_s), (epoch, position)), epoch, position
        )

    def has_begun_another(self, epoch: int) -> bool:
        """Return whether a different epoch has begun since. A heartbeat for ``epoch`` would go back to it."""
        return self.is_ordered and epoch != next(reversed(self._orders), epoch)

    def reopen(
        self, epoch: int, position: int, end_s: float, stopped: threading.Event | None = None
    ) -> float:
        """Register the dataset and open the job again at ``position``, after the coordinator lost its state.

        Gives up at the monotonic time ``end_s``, which is extended while a listing makes progress, and
        returns it. Raises ``SourceError`` if the source has changed since this sampler was created.
        """
        with self._lock:
            info, end_s = self._client.register(
                self._dataset,
                self._run,
                RUNNING,
                end_s,
                silence_s=self._listing_silence_s,
                stopped=stopped,
            )
            if info.fingerprint != self.binding.fingerprint:
                raise SourceError(
                    f"{self._dataset.source} has changed since this sampler was created: it had "
                    f"{self.binding.size} samples with fingerprint {self.binding.fingerprint.hex()}, but now "
                    f"it has {info.size} with {info.fingerprint.hex()}. The restarted coordinator cannot "
                    "continue the same plan. Create a new sampler"
                )
            self._open(info, RUNNING.until(end_s), (epoch, position), stopped)
            _LOG.warning("reopened job %s, which the coordinator had lost", self.job)
            return end_s

    def pages_from(
        self,
        epoch: int,
        position: int,
        count: int,
        *,
        patience: Patience = RUNNING,
        yielded: int,
        with_keys: bool,
        stopped: threading.Event | None = None,
    ) -> Any:
        """Fetch a ``Page`` of up to ``count`` batches from ``position`` on, reopening the job if needed.

        Raises ``UnknownJobError`` if the coordinator loses the job too often, and
        ``CoordinatorUnreachableError`` if it does not respond in time. Both messages state the limit.
        """
        from superdl.super_wire import coordinator_pb2 as pb

        request = pb.NextBatchesRequest(
            job=self.job,
            rank=self._spec.rank,
            epoch=epoch,
            position=position,
            count=count,
            yielded=yielded,
            with_keys=with_keys,
            sees_store=bool(self.binding.store),
        )
        begun_s, begun_cpu_s = time.perf_counter(), time.thread_time()
        try:
            return self._call_reopening(
                lambda end_s: self._client.call(
                    "NextBatches", request, patience.until(end_s), stopped=stopped
                ),
                epoch,
                yielded,
                stopped,
            )
        finally:
            self.page_calls.status_calls += 1
            self.page_calls.status_s += time.perf_counter() - begun_s
            self.page_calls.status_cpu_s += time.thread_time() - begun_cpu_s

    def _call_reopening(
        self,
        call: Callable[[float], Any],
        epoch: int,
        position: int,
        stopped: threading.Event | None = None,
    ) -> Any:
        """Return the result of ``call(end_s)``. If the job is unknown, reopen it and retry."""
        begin_s = time.monotonic()
        end_s = begin_s + self._reopening_s
        opened = 0
        while opened < MAX_REOPENS and (time.monotonic() < end_s or not opened):
            try:
                return call(end_s)
            except UnknownJobError:
                opened += 1
            try:
                end_s = self.reopen(epoch, position, end_s, stopped)
            except CoordinatorUnreachableError as error:
                raise CoordinatorUnreachableError(
                    f"the coordinator lost job {self.job}, which could not be reopened within "
                    f"{self._reopening_s:g} s: {error}"
                ) from error
        raise UnknownJobError(
            f"the coordinator at {self._client.address} lost job {self.job} {opened} times in a row after it "
            f"was opened. Gave up after {time.monotonic() - begin_s:.1f} s (the limits are {MAX_REOPENS} "
            f"times and {self._reopening_s:g} s)"
        )

    def stats(self) -> SamplerStats:
        """Return the coordinator's counters for the job, and the time spent on this sampler's page calls."""
        from superdl.super_wire import coordinator_pb2 as pb

        request = pb.GetJobStatsRequest(jobs=[self.job], with_stalls=True)
        reply = self._client.call("GetJobStats", request, FIRST_CONTACT)
        if not reply.jobs:
            raise UnknownJobError(f"the coordinator at {self._client.address} has no job named {self.job}")
        return SamplerStats.from_messages(reply.jobs[0], reply.cache, self.page_calls, reply.workers)

    def close(self) -> None:
        """Close the job on this rank."""
        from superdl.super_wire import coordinator_pb2 as pb

        request = pb.CloseJobRequest(job=self.job, rank=self._spec.rank)
        self._client.call("CloseJob", request, Patience(attempts=2, total_s=2.0, deadline_s=1.0))


def readable_store(address: str, store_id: str) -> str:
    """Return the store's address if this machine can read that exact store, else an empty string."""
    if not address:
        return ""
    try:
        store = DirectoryStore.open(address, create=False, read_only=True)
    except StoreError as error:
        _LOG.info("reading the store through the cache: %s", error)
        return ""
    if store.id != store_id:
        _LOG.info("reading the store through the cache: %s is a different store on this machine", address)
        return ""
    return store.address
