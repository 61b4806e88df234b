"""The gRPC service, which checks requests and calls the engine. Calls are idempotent or raise SuperError."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any, TypeAlias

from superdl.coordinator.core import (
    BatchesRequested,
    BatchPlace,
    FillUp,
    JobClosed,
    JobOpened,
    Plan,
    exceeding_text,
)
from superdl.coordinator.server.history import Watch
from superdl.coordinator.server.paging import (
    Orders,
    PlannedBatches,
    check_job_id,
    check_position,
    locations_fit,
    page_of,
    samples_from,
)
from superdl.coordinator.server.statistics import batch_status, filling, stats
from superdl.coordinator.server.tokens import has_tokens, team_of
from superdl.super_wire import coordinator_pb2 as pb
from superdl.super_wire import coordinator_pb2_grpc as pb_grpc
from superdl.super_wire.errors import (
    ConfigError,
    CoordinatorError,
    PlanError,
    ProtocolMismatchError,
    SourceError,
    UnknownJobError,
)
from superdl.super_wire.ids import ID_BYTES, checked_naming
from superdl.super_wire.labels import checked_classes
from superdl.super_wire.protocol import MAX_REPLY_BYTES, PROTOCOL_VERSION
from superdl.super_wire.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Callable

    import grpc

    from superdl.coordinator.cache.streams import ReportReader
    from superdl.coordinator.catalog.dataset import Dataset
    from superdl.coordinator.core import DatasetFacts, Job
    from superdl.coordinator.executors.eligibility import Eligibility
    from superdl.coordinator.server.engine import Engine
    from superdl.coordinator.server.settings import Settings
    from superdl.coordinator.server.tokens import Tokens

_MAX_WAIT_S = 20.0
_MAX_COUNT = 1024
_HISTORIES_MAX = 16
_MAX_JOBS = 10_000
_MAX_BATCH_REPLY_BYTES = 4 * 2**20
_MAX_RANKS = 100_000  # of all jobs in total
_MAX_TEXT = 65_536
_MAX_BATCH_IDS = 4096
_MAX_JOB_STATS = 1024

_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class CoordinatorService(pb_grpc.CoordinatorServicer):
    """The service for samplers. ``facts_of`` returns a dataset's properties for the core."""

    def __init__(
        self,
        engine: Engine,
        reports: ReportReader,
        eligibility: Eligibility,
        *,
        facts_of: Callable[[Dataset], DatasetFacts],
        settings: Settings,
        watch: Watch | None = None,
        tokens: Tokens | None = None,
    ) -> None:
        self._tokens = tokens
        self._settings = settings
        self._engine = engine
        self._core = engine.core
        self._datasets = engine.datasets
        self._reports = reports
        self._eligibility = eligibility
        self._facts_of = facts_of
        self._planned, self._orders = PlannedBatches(), Orders()
        self._watch = watch or Watch(engine)

    async def RegisterDataset(self, request: pb.RegisterDatasetRequest, context: _Context) -> pb.Dataset:
        """Start listing a source, unless it has already been listed."""
        if request.protocol_version != PROTOCOL_VERSION:
            raise ProtocolMismatchError(
                f"this coordinator uses protocol version {PROTOCOL_VERSION}, but the sampler uses version "
                f"{request.protocol_version}: install the same version of SUPER on both sides"
            )
        if max(map(len, (request.source, request.recipe, request.key_list, request.run_id))) > _MAX_TEXT:
            raise ConfigError(
                f"source, recipe, key list and run id may each have {_MAX_TEXT} characters at most"
            )
        self._eligibility.check_source(request.source)
        recipe = Recipe.from_json(request.recipe)
        naming = checked_naming(request.alias or None, request.versions or None)
        classes = checked_classes(tuple(request.classes)) if request.classes else ()
        registration = request.source, recipe, request.key_list, request.run_id
        is_open = self._is_active if request.begins else None
        dataset = self._datasets.register(
            *registration, naming, classes, renew=request.renew, is_open=is_open
        )
        return await self._describe(dataset, listed=0, wait_s=0.5)  # enough for most sources

    async def GetDataset(self, request: pb.GetDatasetRequest, context: _Context) -> pb.Dataset:
        """Return a listing's progress, waiting a limited time for an update."""
        wait_s = min(request.wait_s, _MAX_WAIT_S) if request.wait_s > 0 else 0.0  # NaN is not above 0
        return await self._describe(self._dataset(request.dataset_id), listed=request.listed, wait_s=wait_s)

    async def GetSamples(self, request: pb.GetSamplesRequest, context: _Context) -> pb.Samples:
        """Return some of the labels of a listed dataset, with keys if requested."""
        catalog = self._dataset(request.dataset_id).catalog
        return samples_from(catalog, request.start, with_keys=request.with_keys)

    async def OpenJob(self, request: pb.OpenJobRequest, context: _Context) -> pb.Job:
        """Open a job or add a rank to it, unless both already exist."""
        check_job_id(request.job)
        dataset, team = self._dataset(request.dataset_id), team_of(self._tokens, context)
        plan = await asyncio.to_thread(self._orders.plan_of, request, len(dataset.catalog))
        if not self._is_ready(dataset):
            raise SourceError(
                f"{dataset.listing.source} is not ready: its ids are being derived, or functions are tried"
            )
        if request.rank >= plan.replicas:
            raise PlanError(f"rank must be from 0 to {plan.replicas - 1}, not {request.rank}")
        check_position(plan, request.epoch, request.position)
        if request.fills and (dataset.recipe.random or plan.replicas > 1 or plan.draws is not None):
            raise ConfigError(
                "a job that only fills the cache or store must have one rank, all samples and a recipe "
                "without random steps"
            )
        self._check_batch_fits(dataset, plan)
        await self._forget_closed_jobs()
        await self._engine.keeper.opened(dataset)
        await self._reports.follow(request.job)
        # Await nothing from here on. Otherwise two ranks could open different plans, and another call could
        # take the job for a closed one and stop reading its reports.
        job = self._core.job(request.job)
        facts = (plan, dataset.content, request.fills)
        if job is not None and plan.only_epoch is not None and job.plan.only_epoch is not None:
            facts = (job.plan, *facts[1:])  # with a different order
        if job is not None and (job.plan, job.dataset, job.fill is not None) != facts:
            raise ConfigError(
                f"job {request.job!r} is already open with a different plan, dataset or purpose (reading or "
                "filling): choose another name with job="
            )
        if job is not None and job.team != team and has_tokens(self._tokens, job.team):
            raise ConfigError(
                f"job {request.job!r} belongs to another team: use that team's token, or choose "
                "another name with job="
            )
        if job is None and len(self._core.jobs) >= _MAX_JOBS:
            raise CoordinatorError(
                f"this coordinator has reached its maximum of {_MAX_JOBS} jobs: close some"
            )
        is_known = job is not None and request.rank in job.cursors
        if not is_known and sum(len(other.cursors) for other in self._core.jobs) >= _MAX_RANKS:
            raise CoordinatorError(
                f"this coordinator has reached its maximum of {_MAX_RANKS} ranks across all jobs: close "
                "some jobs"
            )
        self._datasets.open(dataset)
        dataset.jobs = {request.job, *filter(self._is_open, dataset.jobs)}
        described = self._facts_of(dataset)
        ineligible, at = self._eligibility.opened(dataset), (request.epoch, request.position)
        opened = JobOpened(request.job, described, plan, request.rank, *at, ineligible, team)
        keeper = self._engine.keeper
        stored = [] if is_known else keeper.stored(dataset.content)
        fills = [FillUp(request.job, size_bytes=0.0)] if request.fills else []
        self._engine.post_all([opened, *stored, *fills])
        self._watch.look()
        store_id = keeper.store_id if locations_fit(plan, dataset) else ""
        return pb.Job(
            job=request.job,
            cache=self._engine.cache_address,
            batches_per_epoch=plan.batches_per_epoch,
            warnings=[*self._exceeds_cache(dataset, plan), *filter(None, [dataset.moved])],
            kept=keeper.store_use,
            store=keeper.address if store_id else "",
            store_id=store_id,
        )

    async def SendOrder(self, request: pb.OrderPart, context: _Context) -> pb.OrderReceived:
        """Store a part of an order until a job is opened with it."""
        check_job_id(request.job)
        return pb.OrderReceived(indices=await asyncio.to_thread(self._orders.add, request))

    async def NextBatches(self, request: pb.NextBatchesRequest, context: _Context) -> pb.Page:
        """Return a page of the plan with the status of its batches."""
        job = self._job(request.job)
        if request.rank not in job.cursors:
            raise UnknownJobError(f"rank {request.rank} has not opened the job {request.job!r}")
        check_position(job.plan, request.epoch, request.position)
        dataset = self._datasets[job.dataset]
        sees_store = request.sees_store and locations_fit(job.plan, dataset)
        page = page_of(
            self._core,
            job,
            dataset,
            rank=request.rank,
            epoch=request.epoch,
            start=request.position,
            count=max(1, min(request.count, _MAX_COUNT)),
            with_keys=request.with_keys,
            places=self._engine.keeper.places if sees_store else None,
        )
        for batch in page.batches:
            occurrence = BatchPlace(request.job, request.rank, request.epoch, batch.position)
            self._planned.add(batch.batch_id, occurrence)
        stop = request.position + len(page.batches)
        yielded = min(request.yielded, stop)
        span = (request.job, request.rank, request.epoch, request.position, stop, yielded)
        self._engine.post(BatchesRequested(*span, sees_store=sees_store))
        return page

    async def FillUp(self, request: pb.FillUpRequest, context: _Context) -> pb.Filling:
        """Have a job fill the cache or the store, and return its progress."""
        job, keeper = self._job(request.job), self._engine.keeper
        if job.fill is None:
            raise ConfigError(f"the job {request.job!r} is for reading: open another one with fills")
        if request.to_store and keeper.unwritten:
            reason = keeper.store_use or "start it with --store"
            raise ConfigError(f"the coordinator currently has no store to fill: {reason}")
        bounds = request.max_bytes or math.inf, request.max_usd if request.max_usd > 0 else math.inf
        self._engine.post(FillUp(request.job, *bounds, to_store=request.to_store))
        return filling(self._core, job, self._datasets[job.dataset])

    async def GetBatchStatus(self, request: pb.GetBatchStatusRequest, context: _Context) -> pb.BatchStatuses:
        """Return the status of batches, including their samples while the reply is below 1 MiB."""
        if len(request.batch_ids) > _MAX_BATCH_IDS:
            raise ConfigError(f"one call may request at most {_MAX_BATCH_IDS} batches")
        if any(len(batch) != ID_BYTES for batch in request.batch_ids):
            raise ConfigError(f"a batch id must be {ID_BYTES} bytes long")
        reply, room_bytes = pb.BatchStatuses(), MAX_REPLY_BYTES
        for number, batch in enumerate(request.batch_ids):
            with_events = number < _HISTORIES_MAX  # each takes a few milliseconds
            occurrences = self._planned.find(batch)
            status = batch_status(self._engine, occurrences, batch, room_bytes, with_events=with_events)
            room_bytes -= status.ByteSize()
            reply.statuses.append(status)
        return reply

    async def CloseJob(self, request: pb.CloseJobRequest, context: _Context) -> pb.CloseJobReply:
        """Close a rank. The job closes when its last rank does."""
        check_job_id(request.job)
        known = self._core.job(request.job) is not None
        # The core needs the last reports before the job closes.
        await self._reports.catch_up(request.job)
        self._watch.look()
        self._watch.note(request.job)
        self._engine.post(JobClosed(request.job, request.rank))
        self._watch.look()
        if self._core.job(request.job) is None:
            await self._reports.leave(request.job)
        return pb.CloseJobReply(closed=known)

    async def GetJobStats(self, request: pb.GetJobStatsRequest, context: _Context) -> pb.JobStatsList:
        """Return statistics for jobs and the cache."""
        core = self._core
        if len(request.jobs) > _MAX_JOB_STATS:
            raise ConfigError(f"one call may name at most {_MAX_JOB_STATS} jobs; name none to get all")
        jobs = [self._job(name) for name in request.jobs] if request.jobs else core.jobs
        with_stalls = request.with_stalls and len(request.jobs) == 1
        history = self._watch.ended() if request.history else []
        facts = (self._engine, self._settings, jobs, self._eligibility.executors)
        return stats(*facts, with_stalls=with_stalls, history=history)

    async def _describe(self, dataset: Dataset, *, listed: int, wait_s: float) -> pb.Dataset:
        until_s = self._engine.now_s() + wait_s
        await self._datasets.wait(dataset, listed=listed, wait_s=wait_s)
        if dataset.ready:
            await self._eligibility.check(dataset, max(0.0, until_s - self._engine.now_s()))
        reply = pb.Dataset(
            protocol_version=PROTOCOL_VERSION, dataset_id=dataset.dataset_id, listed=dataset.listing.listed
        )
        if not self._is_ready(dataset):
            reply.warnings.extend(filter(None, [dataset.listing.problem]))
            if not dataset.ready:
                reply.packing = dataset.listing.packing or dataset.listing.ended
                self._engine.note(dataset.dataset_id, dataset.listing.note)
        else:
            catalog = dataset.catalog
            reply.ready, reply.size = True, len(catalog)
            reply.fingerprint = catalog.fingerprint
            reply.classes.extend(catalog.classes)
            reply.label_dtype = catalog.label_dtype
            reply.warnings.extend((*catalog.warnings, *self._eligibility.warnings(dataset)))
        return reply

    def _is_active(self, name: str) -> bool:
        job = self._core.job(name)
        return job is not None and not job.lapsed

    def _is_open(self, name: str) -> bool:
        return self._core.job(name) is not None

    def _is_ready(self, dataset: Dataset) -> bool:
        return dataset.ready and self._eligibility.is_known(dataset)

    def _dataset(self, dataset_id: bytes) -> Dataset:
        if len(dataset_id) != ID_BYTES:
            raise ConfigError(f"a dataset id must be {ID_BYTES} bytes long, not {len(dataset_id)}")
        dataset = self._datasets.get(dataset_id)
        if dataset is None:
            raise UnknownJobError(f"the dataset {dataset_id.hex()} is not registered: register it (again)")
        return dataset

    def _job(self, name: str) -> Job:
        check_job_id(name)
        job = self._core.job(name)
        if job is None:
            raise UnknownJobError(f"the job {name!r} is not open: open it (again)")
        return job

    def _check_batch_fits(self, dataset: Dataset, plan: Plan) -> None:
        samples = min(plan.batch_size, plan.length)
        budget, batch_bytes = self._core.state.budget_bytes, samples * dataset.record_bytes
        if dataset.recipe.output_shape and batch_bytes > budget:
            raise ConfigError(
                f"a batch of {samples} samples takes {batch_bytes:,} bytes, which does not fit into the "
                f"cache budget of {budget:,} bytes: raise cache_bytes (SUPER_CACHE_BYTES) or the cache "
                "server's maxmemory, or lower batch_size"
            )
        label_bytes = dataset.catalog.max_label_bytes(samples, may_repeat=bool(plan.draws))
        reply_bytes = samples * (ID_BYTES + 1) + label_bytes
        if reply_bytes > _MAX_BATCH_REPLY_BYTES:
            raise ConfigError(
                f"the ids and labels of a batch of {samples:,} samples take up to {reply_bytes:,} bytes, "
                f"more than the {_MAX_BATCH_REPLY_BYTES:,} bytes that fit into a reply: lower batch_size"
            )

    def _exceeds_cache(self, dataset: Dataset, plan: Plan) -> list[str]:
        size, budget = plan.samples_drawn * dataset.record_bytes, self._core.state.budget_bytes
        if dataset.recipe.random or size <= budget:
            return []
        keeper = self._engine.keeper
        return [exceeding_text(dataset.listing.source, size, budget, kept=not keeper.unwritten)]

    async def _forget_closed_jobs(self) -> None:
        # Their ranks have disappeared.
        for name in self._reports.jobs:
            if self._core.job(name) is None:
                await self._reports.leave(name)
        self._datasets.close_unknown(self._core.state.datasets)
