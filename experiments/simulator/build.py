"""Turns a spec into a scenario: catalogs, plans, job scripts, function model and settings of the core."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import numpy as np

from superdl.coordinator.core import CoreSettings, Plan
from superdl.coordinator.core.prices import Prices
from superdl.coordinator.core.settings import ExecutorFacts
from superdl.experiments.simulator.scenario import DatasetModel, Faults, FunctionsModel, JobScript, Scenario
from superdl.super_wire.record import HEADER_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from superdl.experiments.simulator.spec import DatasetSpec, FunctionsSpec, JobSpec, SimulationSpec

__all__ = ["build_scenario"]

_GB = 2**30
_CHANNELS = 3
_PATIENCE_S = 3600.0
_HEARTBEAT_S = 2.0
"""As the sampler's pages are asked for again."""


def build_scenario(spec: SimulationSpec) -> Scenario:
    """Everything that the world needs to run ``spec``."""
    datasets = {
        _name(one, copy): DatasetModel(
            name=_name(one, copy),
            random=one.random,
            record_bytes=np.broadcast_to(np.int64(_record_bytes(one)), one.samples),
            source_bytes=one.source_bytes,
        )
        for one in spec.datasets
        for copy in range(one.copies)
    }
    until_s = math.inf if spec.minutes is None else spec.minutes * 60
    return Scenario(
        seed=spec.seed,
        settings=_settings(spec),
        functions=_functions(spec.functions),
        datasets=datasets,
        jobs=tuple(script for job in spec.jobs for script in _scripts(spec, job)),
        faults=Faults(crash=spec.functions.failures, throttle=spec.functions.throttles),
        left_over=spec.cache.left_over,
        patience_s=_PATIENCE_S,
        until_s=until_s,
        heartbeat_s=_HEARTBEAT_S,
        events_max=2**62,
    )


def _name(dataset: DatasetSpec, copy: int) -> bytes:
    return f"{dataset.name}-{copy}".encode() if dataset.copies > 1 else dataset.name.encode()


def _record_bytes(dataset: DatasetSpec) -> int:
    return dataset.record_bytes or dataset.image**2 * _CHANNELS + HEADER_BYTES


def _settings(spec: SimulationSpec) -> CoreSettings:
    per_hour = spec.coordinator.max_usd_per_hour
    prices = Prices(
        invocation=spec.prices.invocation,
        gb_s=spec.prices.gb_s,
        source_request=spec.prices.source_request,
        hour=spec.prices.cache_gb_hour * spec.cache.budget_gb,
    )
    return CoreSettings(
        budget_bytes=max(1, int(spec.cache.budget_gb * _GB)),
        lookahead_batches=spec.coordinator.lookahead_batches,
        request_samples=spec.coordinator.request_samples,
        executors=(ExecutorFacts(spec.functions.kind, prices),),
        max_usd_per_hour=math.inf if per_hour is None else per_hour,
    )


def _functions(spec: FunctionsSpec) -> FunctionsModel:
    pool = spec.kind == "pool"
    same = {field.name for field in dataclasses.fields(FunctionsModel)} & {
        field.name for field in dataclasses.fields(spec)
    }
    values = {name: getattr(spec, name) for name in sorted(same - {"burst", "per_s"})}
    return FunctionsModel(
        capacity=spec.concurrency,
        queues=pool,
        burst=None if pool else min(spec.burst, spec.concurrency),
        per_s=math.inf if pool else spec.per_s,
        **values,
    )


def _scripts(spec: SimulationSpec, job: JobSpec) -> Iterator[JobScript]:
    dataset = next(one for one in spec.datasets if one.name == job.dataset)
    read_s = job.batch_size * _record_bytes(dataset) / (job.read_gb_per_s * _GB)
    for number in range(job.count):
        plan = Plan(
            size=dataset.samples,
            batch_size=job.batch_size,
            replicas=job.replicas,
            seed=job.seed if job.same_seed else job.seed + number,
            shuffle=job.shuffle,
            drop_last=job.drop_last,
        )
        yield JobScript(
            name=_job_name(job, number),
            dataset=_name(dataset, number % dataset.copies),
            plan=plan,
            starts_s=job.start_s + number * job.start_every_s,
            step_s=job.step_s,
            workers=job.workers,
            page=job.page,
            passes=[(epoch, 0, plan.batches_per_epoch) for epoch in range(job.epochs)],
            read_s=read_s,
            handover_s=job.handover_s,
            follows=_follows(spec, job, number),
        )


def _job_name(job: JobSpec, number: int) -> str:
    return job.name if job.count == 1 else f"{job.name}-{number}"


def _follows(spec: SimulationSpec, job: JobSpec, number: int) -> str | None:
    if job.follows is None:
        return None
    return _job_name(next(one for one in spec.jobs if one.name == job.follows), number)
