"""The gRPC service: checks what comes in, asks the engine, maps errors out. It decides nothing.

Every call is idempotent. Failures go out as a status with the message as details and the error's class in the
trailing metadata.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import grpc

from superdl.coordinator.core import BatchesAsked, DatasetAdded, JobClosed, JobOpened, Plan
from superdl.coordinator.server.fields import check_fields
from superdl.coordinator.server.paging import Occurrence, PlannedBatches, page_of
from superdl.coordinator.server.statistics import (
    batch_status,
    cache_stats,
    coordinating,
    executor_prices,
    executor_stats,
    job_stats,
)
from superdl.super_wire import coordinator_pb2 as pb
from superdl.super_wire import coordinator_pb2_grpc as pb_grpc
from superdl.super_wire.errors import (
    CacheError,
    ConfigError,
    CoordinatorError,
    PlanError,
    ProtocolMismatchError,
    SourceError,
    SuperError,
    UnknownJobError,
)
from superdl.super_wire.ids import ID_BYTES
from superdl.super_wire.protocol import ERROR_METADATA_KEY, MAX_REPLY_BYTES, PROTOCOL_VERSION
from superdl.super_wire.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from superdl.coordinator.cache.read_reports import ReportReader
    from superdl.coordinator.core import Job
    from superdl.coordinator.executors.eligibility import Eligibility
    from superdl.coordinator.server.datasets import Dataset, DatasetRegistry
    from superdl.coordinator.server.engine import Engine
    from superdl.coordinator.server.settings import Settings

__all__ = ["CoordinatorService"]

_MAX_WAIT_S = 20.0
_MAX_COUNT = 1024
_STORIES_MAX = 16
_MAX_JOBS = 10_000
_MAX_BATCH_REPLY_BYTES = 4 * 2**20
_MAX_MESSAGE = 2000  # bytes; an error travels in a header, and headers are short
_MAX_RANKS = 100_000  # of all jobs together
_MAX_POLLS = 4096

_CODES: tuple[tuple[type[SuperError], grpc.StatusCode], ...] = (
    (ProtocolMismatchError, grpc.StatusCode.FAILED_PRECONDITION),
    (UnknownJobError, grpc.StatusCode.NOT_FOUND),
    (ConfigError, grpc.StatusCode.INVALID_ARGUMENT),
    (SourceError, grpc.StatusCode.FAILED_PRECONDITION),
    (CacheError, grpc.StatusCode.FAILED_PRECONDITION),
    (SuperError, grpc.StatusCode.INTERNAL),
)

_Context = grpc.aio.ServicerContext


async def _abort(context: _Context[Any, Any], error: SuperError) -> NoReturn:
    code = next(code for kind, code in _CODES if isinstance(error, kind))
    message = str(error).encode(errors="replace")[:_MAX_MESSAGE].decode(errors="ignore")
    await context.abort(code, message, ((ERROR_METADATA_KEY, type(error).__name__),))
    raise error  # abort() raises; this tells the type checker


def _typed_errors(
    method: Callable[[Any, Any, _Context[Any, Any]], Awaitable[Any]],
) -> Callable[[Any, Any, _Context[Any, Any]], Awaitable[Any]]:
    async def call(self: CoordinatorService, request: Any, context: _Context[Any, Any]) -> Any:
        try:
            check_fields(request)
            return await method(self, request, context)
        except SuperError as error:
            await _abort(context, error)

    call.__name__, call.__doc__ = method.__name__, method.__doc__
    return call


def _check_position(plan: Plan, position: int) -> None:
    if position > plan.batches_per_epoch:
        msg = f"an epoch has {plan.batches_per_epoch} batches; there is no position {position}"
        raise PlanError(msg)


class CoordinatorService(pb_grpc.CoordinatorServicer):
    """Answers samplers.

    Args:
        engine: core and hands.
        datasets: what has been registered.
        reports: follows the jobs' report streams.
        eligibility: which executors can produce a dataset.
        cache_was_empty: whether the cache held nothing when this coordinator took it over.
        settings: what is told of this coordinator; nothing where none are given.
    """

    def __init__(
        self,
        engine: Engine,
        datasets: DatasetRegistry,
        reports: ReportReader,
        eligibility: Eligibility,
        *,
        cache_was_empty: bool,
        settings: Settings | None = None,
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._datasets = datasets
        self._reports = reports
        self._eligibility = eligibility
        self._cache_was_empty = cache_was_empty
        self._planned = PlannedBatches()
        self._jobs: dict[str, Dataset] = {}
        self._polls = 0

    @_typed_errors
    async def RegisterDataset(
        self, request: pb.RegisterDatasetRequest, context: _Context[Any, Any]
    ) -> pb.Dataset:  # gRPC's signature
        """Begin listing a source, or find it listed."""
        if request.protocol_version != PROTOCOL_VERSION:
            msg = (
                f"this coordinator speaks protocol version {PROTOCOL_VERSION}, the sampler version "
                f"{request.protocol_version}: "
                f"install the same version of SUPER on both sides"
            )
            raise ProtocolMismatchError(msg)
        self._eligibility.check_source(request.source)
        recipe = Recipe.from_json(request.recipe)
        dataset = self._datasets.register(request.source, recipe, request.key_list, request.run_id)
        await self._wait(dataset, listed=0, wait_s=0)
        return self._describe(dataset)

    @_typed_errors
    async def GetDataset(self, request: pb.GetDatasetRequest, context: _Context[Any, Any]) -> pb.Dataset:
        """How far a listing is; waits a bounded while for news."""
        dataset = self._dataset(request.dataset_id)
        wait_s = min(request.wait_s, _MAX_WAIT_S) if request.wait_s > 0 else 0.0  # NaN is not above 0
        self._polls += 1
        try:  # who is one too many hears at once what is known
            await self._wait(
                dataset, listed=request.listed, wait_s=wait_s if self._polls <= _MAX_POLLS else 0.0
            )
        finally:
            self._polls -= 1
        return self._describe(dataset)

    @_typed_errors
    async def OpenJob(self, request: pb.OpenJobRequest, context: _Context[Any, Any]) -> pb.Job:
        """Open a job, add a rank to it, or find both there."""
        dataset = self._dataset(request.dataset_id)
        plan = Plan(
            size=len(dataset.catalog),
            batch_size=request.batch_size,
            replicas=request.replicas,
            seed=request.seed,
            shuffle=request.shuffle,
            drop_last=request.drop_last,
        )
        if not self._is_ready(dataset):
            msg = f"the ids of {dataset.listing.source} are still being derived, or tried"
            raise SourceError(msg)
        if request.rank >= plan.replicas:
            msg = f"rank is from 0 to {plan.replicas - 1}; not {request.rank}"
            raise PlanError(msg)
        _check_position(plan, request.position)
        self._check_batch_fits(dataset, plan)
        await self._forget_closed_jobs()
        await self._reports.follow(request.job)
        # From here on nothing waits, so that of two ranks with two plans the second is refused.
        open_already = self._engine.core.job(request.job)
        if open_already is not None and (open_already.plan, open_already.dataset) != (plan, dataset.content):
            msg = f"the job {request.job!r} is open with another plan or dataset: name this one by job="
            raise ConfigError(msg)
        if open_already is None and len(self._engine.core.jobs) >= _MAX_JOBS:
            msg = f"this coordinator has its {_MAX_JOBS} jobs open: close some"
            raise CoordinatorError(msg)
        is_known = open_already is not None and request.rank in open_already.cursors
        if not is_known and sum(len(job.cursors) for job in self._engine.core.jobs) >= _MAX_RANKS:
            msg = f"this coordinator serves its {_MAX_RANKS} ranks, over all jobs: close some"
            raise CoordinatorError(msg)
        self._engine.know(dataset)
        self._jobs[request.job] = dataset
        self._engine.post(
            DatasetAdded(
                dataset.content,
                plan.size,
                dataset.recipe.random,
                dataset.record_bytes,
                known_absent=self._cache_was_empty,
            )
        )
        self._engine.post(self._eligibility.event_for(dataset))
        self._engine.post(
            JobOpened(
                request.job,
                dataset.content,
                plan,
                request.rank,
                epoch=request.epoch,
                position=request.position,
            )
        )
        return pb.Job(
            job=request.job, cache=self._engine.cache_address, batches_per_epoch=plan.batches_per_epoch
        )

    @_typed_errors
    async def NextBatches(self, request: pb.NextBatchesRequest, context: _Context[Any, Any]) -> pb.Page:
        """A page of the plan, with status."""
        job = self._job(request.job)
        if request.rank not in job.cursors:
            msg = f"rank {request.rank} has not opened the job {request.job!r}"
            raise UnknownJobError(msg)
        _check_position(job.plan, request.position)
        page = page_of(
            self._engine.core,
            job,
            self._jobs[request.job],
            rank=request.rank,
            epoch=request.epoch,
            start=request.position,
            count=max(1, min(request.count, _MAX_COUNT)),
            with_keys=request.with_keys,
        )
        for batch in page.batches:
            place = Occurrence(request.job, request.rank, request.epoch, batch.position)
            self._planned.add(batch.batch_id, place)
        stop = request.position + len(page.batches)
        yielded = min(request.yielded, stop)
        self._engine.post(
            BatchesAsked(request.job, request.rank, request.epoch, request.position, stop, yielded)
        )
        return page

    @_typed_errors
    async def GetBatchStatus(
        self,
        request: pb.GetBatchStatusRequest,
        context: _Context[Any, Any],
    ) -> pb.BatchStatuses:
        """What is known of batches; sample by sample, as far as the reply stays below 1 MiB."""
        reply, room_bytes = pb.BatchStatuses(), MAX_REPLY_BYTES
        for number, batch in enumerate(request.batch_ids):
            status = batch_status(
                self._engine,
                self._planned.find(batch),
                self._jobs,
                batch,
                room_bytes,
                with_events=number < _STORIES_MAX,  # each takes some milliseconds
            )
            room_bytes -= status.ByteSize()
            reply.statuses.append(status)
        return reply

    @_typed_errors
    async def CloseJob(self, request: pb.CloseJobRequest, context: _Context[Any, Any]) -> pb.CloseJobReply:
        """A rank says goodbye; the job ends with its last one."""
        known = self._engine.core.job(request.job) is not None
        self._engine.post(JobClosed(request.job, request.rank))
        if self._engine.core.job(request.job) is None:
            self._jobs.pop(request.job, None)
            await self._reports.leave(request.job)
        return pb.CloseJobReply(closed=known)

    @_typed_errors
    async def GetJobStats(
        self, request: pb.GetJobStatsRequest, context: _Context[Any, Any]
    ) -> pb.JobStatsList:  # gRPC's signature
        """Accounts of jobs and of the cache."""
        core = self._engine.core
        jobs = [self._job(name) for name in request.jobs] if request.jobs else core.jobs
        with_stalls = request.with_stalls and len(request.jobs) == 1
        return pb.JobStatsList(
            jobs=[
                job_stats(core, job, self._jobs[job.name].listing.source, with_stalls=with_stalls)
                for job in jobs
            ],
            cache=cache_stats(core, self._engine.now_s()),
            coordinating=coordinating(self._settings) if self._settings else None,
            prices=executor_prices(core),
            executors=executor_stats(core, self._eligibility.absences),
        )

    async def _wait(self, dataset: Dataset, *, listed: int, wait_s: float) -> None:
        """Wait for news of a listing, and once it has ended, for its trial."""
        until_s = self._engine.now_s() + wait_s
        await self._datasets.wait(dataset, listed=listed, wait_s=wait_s)
        if dataset.ready:
            await self._eligibility.check(dataset, max(0.0, until_s - self._engine.now_s()))

    def _is_ready(self, dataset: Dataset) -> bool:
        return dataset.ready and self._eligibility.is_known(dataset)

    def _dataset(self, dataset_id: bytes) -> Dataset:
        dataset = self._datasets.get(dataset_id)
        if dataset is None:
            msg = f"no dataset {dataset_id.hex()} is registered here: register it (again)"
            raise UnknownJobError(msg)
        return dataset

    def _job(self, name: str) -> Job:
        job = self._engine.core.job(name)
        if job is None or name not in self._jobs:
            msg = f"no job {name!r} is open here: open it (again)"
            raise UnknownJobError(msg)
        return job

    def _check_batch_fits(self, dataset: Dataset, plan: Plan) -> None:
        samples = min(plan.batch_size, plan.size)
        budget, batch_bytes = self._engine.core.state.budget_bytes, samples * dataset.record_bytes
        if dataset.recipe.output_shape and batch_bytes > budget:
            msg = (
                f"a batch of {samples} samples has {batch_bytes:,} bytes and does not fit into the "
                f"cache budget of {budget:,} bytes: raise cache_bytes (SUPER_CACHE_BYTES for the embedded "
                f"default) or lower batch_size"
            )
            raise ConfigError(msg)
        reply_bytes = samples * (ID_BYTES + dataset.catalog.labels.itemsize + 1)
        if reply_bytes > _MAX_BATCH_REPLY_BYTES:
            msg = (
                f"the ids and labels of a batch of {samples:,} samples have {reply_bytes:,} bytes, more than "
                f"the {_MAX_BATCH_REPLY_BYTES:,} that travel in one reply: lower batch_size"
            )
            raise ConfigError(msg)

    async def _forget_closed_jobs(self) -> None:
        """Forget what the core has forgotten: jobs whose ranks went without a goodbye."""
        for name in list(self._jobs):
            if self._engine.core.job(name) is None and self._jobs.pop(name, None) is not None:
                await self._reports.leave(name)
        self._engine.forget_unused()

    def _describe(self, dataset: Dataset) -> pb.Dataset:
        answer = pb.Dataset(
            protocol_version=PROTOCOL_VERSION, dataset_id=dataset.dataset_id, listed=dataset.listing.listed
        )
        if self._is_ready(dataset):
            catalog = dataset.catalog
            answer.ready = True
            answer.size = len(catalog)
            answer.fingerprint = catalog.fingerprint
            answer.classes.extend(catalog.classes)
            answer.label_dtype = catalog.label_dtype
            answer.warnings.extend((*catalog.warnings, *self._eligibility.warnings(dataset)))
        return answer
