"""Start a coordinator, serve until it has to stop, and shut down cleanly."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import logging
import math
import os
import signal
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from superdl.coordinator.cache.cache import Cache, LockHeldError
from superdl.coordinator.cache.streams import ReportReader
from superdl.coordinator.catalog.datasets import DatasetRegistry
from superdl.coordinator.catalog.state import CatalogState, open_state
from superdl.coordinator.core import CoreSettings, ExecutorFacts, TeamsChanged
from superdl.coordinator.executors.base import executor_class, sees_store, shipped_prices_of
from superdl.coordinator.executors.eligibility import Eligibility
from superdl.coordinator.executors.manager import ExecutorManager
from superdl.coordinator.executors.workers import WorkersExecutor
from superdl.coordinator.server.engine import Engine
from superdl.coordinator.server.grpc_server import raise_limit_of_open_files
from superdl.coordinator.server.history import HISTORY_PAUSE_S, JobHistory, Watch
from superdl.coordinator.server.metrics import EMF_PAUSE_S, EmfLines, Metrics
from superdl.coordinator.server.ports import Ports
from superdl.coordinator.server.service import CoordinatorService
from superdl.coordinator.server.settings import allowed_to_listings, executor_context
from superdl.coordinator.server.tokens import Tokens
from superdl.coordinator.server.trust import warn_if_insecure
from superdl.coordinator.server.upkeep import (
    DecoderReplacedError,
    Upkeep,
    agree_on_fingerprint,
    warm_and_take_over,
)
from superdl.coordinator.store.keeper import StoreKeeper
from superdl.super_wire.cancelling import cancel_and_wait
from superdl.super_wire.errors import CacheError, ConfigError
from superdl.super_wire.store import is_bucket

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from superdl.coordinator.cache.info import CacheInfo
    from superdl.coordinator.catalog.dataset import Dataset
    from superdl.coordinator.core import DatasetFacts
    from superdl.coordinator.executors.connected_workers import Workers
    from superdl.coordinator.server.settings import Settings
    from superdl.super_wire.worker_process import WorkerProcess

_log = logging.getLogger(__name__)

_UPKEEP_S = 1.0
_RETRY_S = 0.2
_GOODBYE_S = 5.0
_DRAIN_MAX_S = 9.0  # less than the ten seconds after which service managers kill a process
_CACHE_END_S = 2.0
_SHARDS = "shards"

_Steps: TypeAlias = "dict[str, tuple[Callable[[], Awaitable[None]], float]]"


class Holders(Protocol):
    """The processes that a coordinator runs for.

    Attributes:
        worker: a process for the local executor that is already loading its modules, if any.
    """

    worker: WorkerProcess | None

    def begin(self, stop: Callable[[], None]) -> None:
        """Watch the processes on the running event loop. Calls ``stop`` when the last one is gone."""

    def serving(self) -> None:
        """Record that the coordinator is serving."""


async def serve(settings: Settings, holders: Holders | None = None, decoder: str = "") -> int:
    """Serve until SIGTERM or SIGINT, or until the run or all holders have ended. Then drain.

    Workers must have this ``decoder`` or, if it is empty, the decoder of the cache's records. Returns 0 or
    the run's exit code.

    Raises:
        SuperError: the coordinator could not start, or lost its cache to another coordinator.
        DecoderReplacedError: the coordinator has to restart with a different decoder.
    """
    faulthandler.cancel_dump_traceback_later()  # from an earlier call
    raise_limit_of_open_files()
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if holders is not None:
        holders.begin(stop.set)
    codes = [0]

    def run_ended(code: int) -> None:
        codes.append(code)
        loop.call_later(_GOODBYE_S, stop.set)  # workers that connect late have to learn of it

    async with contextlib.AsyncExitStack() as stack:
        stopped = loop.create_task(stop.wait(), name="stop")
        stack.push_async_callback(cancel_and_wait, stopped)
        starting = loop.create_task(_start(settings, stack, run_ended, decoder, holders), name="start")
        await asyncio.wait([starting, stopped], return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            _limit_shutdown()
            await cancel_and_wait(starting)
            return codes[-1]
        engine, steps = starting.result()
        _log.info("serving on %s", settings.listen)
        if holders is not None:
            holders.serving()
        loops = [
            loop.create_task(_forever(step, pause_s=pause_s), name=name)
            for name, (step, pause_s) in steps.items()
        ]
        stack.push_async_callback(cancel_and_wait, *loops)
        ends: list[asyncio.Future[Any]] = [stopped, engine.failed, *loops]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        _limit_shutdown()
        for ended in filter(asyncio.Future.done, ends):
            ended.result()  # loops and engine only end by an error
        _log.info("draining")
    return codes[-1]


def _limit_shutdown() -> None:
    # The interpreter waits for hanging threads.
    faulthandler.dump_traceback_later(_DRAIN_MAX_S, exit=True)


async def _start(
    settings: Settings,
    stack: contextlib.AsyncExitStack,
    run_ended: Callable[[int], None],
    decoder: str,
    holders: Holders | None,
) -> tuple[Engine, _Steps]:
    """Start all parts on ``stack``, with the ports last. Return the engine and the steps to repeat."""
    warn_if_insecure(settings)
    _facts(settings)  # raises for mistakes in prices
    tokens = Tokens(settings.token, settings.token_file) if settings.token or settings.token_file else None
    cache = Cache(settings.cache, owner=settings.owner, insecure=settings.insecure)
    stack.push_async_callback(cache.close)
    stack.push_async_callback(_last_call, cache.release_lock, "the lock was not released and will expire")
    executors = [executor_class(name) for name in settings.executors]
    state = open_state(settings.state, settings.store_choice.address, os.environ)
    scratch = state.directory / _SHARDS if state.directory is not None else None
    ports = Ports(settings, tokens, stack, run_ended)
    datasets, keeper = await _with_store(settings, state, stack)
    await ports.open_to_workers(keeper.address, lambda: keeper.store_id)
    # Functions that only restore and save do not cache shards.
    saving = replace(executor_context(settings), workers=ports.savers)
    decoding = replace(
        saving,
        workers=ports.workers,
        scratch=scratch,
        worker=holders.worker if holders is not None else None,
    )
    manager = ExecutorManager(
        [partial(executor, settings, decoding) for executor in executors],
        [partial(executor, given, saving) for executor, given in settings.store_only],
    )
    stack.push_async_callback(manager.close)
    info = await warm_and_take_over(manager, cache, ports.workers, decoder)
    await manager.agree(partial(agree_on_fingerprint, cache))
    core_settings = replace(
        _core_settings(settings, info, _facts(settings, ports.workers), await cache.spent_usd()),
        teams=tokens.teams_now() if tokens is not None else (),
    )
    engine = Engine(
        *(core_settings, cache, manager.executors, datasets, keeper),
        function_memory_mb=settings.function_memory_mb,
    )
    stack.push_async_callback(engine.close)
    keeper.begin(manager.fingerprint, engine.post)
    manager.report_changes(engine.post)
    reports = ReportReader(cache.nodes, engine.post_all)
    eligibility = Eligibility(manager.executors, settings.cache, audit=cache.audit)
    stack.push_async_callback(eligibility.close)
    history = JobHistory(cache)
    await history.load()
    watch = Watch(engine, history)
    stack.push_async_callback(watch.end)

    def facts_of(dataset: Dataset) -> DatasetFacts:
        keeps_shards = all(executor.keeps_shards for executor in manager.decoding)
        return dataset.facts(known_absent=info.keys == 0, keeps_shards=keeps_shards)

    service = CoordinatorService(
        engine,
        reports,
        eligibility,
        facts_of=facts_of,
        settings=settings,
        watch=watch,
        tokens=tokens,
    )
    upkeep = Upkeep(
        cache,
        engine,
        reports,
        info=info,
        fingerprint=manager.fingerprint,
        cache_bytes=settings.cache_bytes,
    )
    stack.push_async_callback(_last_call, upkeep.keep_spent, "the amount spent was not saved")
    # The lock may have expired while functions started, and others' memory must count at once.
    await upkeep.once()
    metrics = Metrics(engine, manager.executors) if settings.metrics_listen else None
    await ports.open(service, metrics)

    steps: _Steps = {
        "upkeep": (upkeep.once, _UPKEEP_S),
        "executors": (
            partial(_follow, engine, eligibility, manager, watch, tokens, ports.workers),
            _UPKEEP_S,
        ),
        "reports": (reports.read_once, 0.0),
        "history": (history.keep, HISTORY_PAUSE_S),
    }
    if settings.metrics_emf:
        steps["emf"] = EmfLines(engine, settings.owner).write, EMF_PAUSE_S
    return engine, steps


async def _with_store(
    settings: Settings, state: CatalogState, stack: contextlib.AsyncExitStack
) -> tuple[DatasetRegistry, StoreKeeper]:
    allowed = allowed_to_listings(settings)
    datasets = DatasetRegistry(max_age_s=settings.catalog_max_age_s, allowed=allowed, state=state)
    stack.push_async_callback(datasets.close)
    choice, read_only = settings.store_choice, settings.store_read_only
    keeper = StoreKeeper(choice, datasets, settings.store_bytes, read_only=read_only)
    stack.push_async_callback(keeper.close)
    await keeper.open()  # before functions look for it
    return datasets, keeper


async def _follow(
    engine: Engine,
    eligibility: Eligibility,
    manager: ExecutorManager,
    watch: Watch,
    tokens: Tokens | None,
    workers: Workers | None,
) -> None:
    """Report changes to executors, teams and the store to the core."""
    known = engine.core.state.datasets
    opened = [dataset for content, dataset in engine.datasets.opened.items() if content in known]
    # Report eligibility first, because the core must know it before the executors accept requests.
    eligibility.report_changes(opened, engine.post)
    manager.report_changes(engine.post)
    if tokens is not None and (teams := tokens.teams_now()) != engine.core.state.teams.configured:
        engine.post(TeamsChanged(teams))
    engine.keeper.step()
    watch.step()
    is_needed = bool(engine.core.jobs)
    if workers is not None and (successor := workers.successor(is_needed=is_needed)):
        if is_needed:
            _log.warning("no remaining worker has the open jobs' decoder: the jobs continue with another one")
        raise DecoderReplacedError(successor)


def _facts(settings: Settings, workers: Workers | None = None) -> tuple[ExecutorFacts, ...]:
    """Return the executors' properties. ``workers`` count as seeing the store only if all of them do."""
    prices_of, store = shipped_prices_of, settings.store_choice.address
    if settings.prices:
        from superdl.coordinator.executors.price_table import load_prices

        prices_of = load_prices(settings.prices).of
    facts = []
    for name in settings.executors:
        all_see = name == WorkersExecutor.name and workers is not None and workers.all_see_store
        facts.append(ExecutorFacts(name, prices_of(name), sees_store=all_see or sees_store(name, store)))
    for executor, _ in settings.store_only:  # their machines' hours are counted already
        prices = replace(prices_of(executor.name), hour=0.0, coordinator_hour=0.0)
        facts.append(ExecutorFacts(executor.name, prices, decodes=False))
    return tuple(facts)


def _core_settings(
    settings: Settings,
    info: CacheInfo,
    executors: tuple[ExecutorFacts, ...],
    spent: tuple[float, dict[str, float]],
) -> CoreSettings:
    spent_usd, teams_usd = spent
    if settings.max_usd or spent_usd:
        cap = f"max_usd is {settings.max_usd:g}" if settings.max_usd else "max_usd is not set"
        _log.info("$%.4f already spent on this cache; %s", spent_usd, cap)
    budget = info.budget(settings.cache_bytes)
    if budget < 1:
        raise ConfigError(
            f"the cache {settings.cache} reports no memory for records: set its maxmemory, or cache_bytes "
            "(SUPER_CACHE_BYTES)"
        )
    _log.info(
        "cache %s: budget %d MiB, policy %s, %d keys", settings.cache, budget >> 20, info.policy, info.keys
    )
    if info.policy != "noeviction" or not (info.maxmemory or settings.cache_bytes):
        _log.warning(
            "the cache %s has maxmemory %d and policy %s, so it may run out of memory or drop records that "
            "are about to be read: set a maxmemory and the policy noeviction",
            *(settings.cache, info.maxmemory, info.policy),
        )
    return CoreSettings(
        budget_bytes=budget,
        lookahead_batches=settings.lookahead_batches,
        request_samples=settings.request_samples,
        request_ttl_s=settings.request_timeout_s,
        lease_s=settings.lease_s,
        executors=executors,
        max_usd=settings.max_usd or math.inf,
        max_usd_per_hour=settings.max_usd_per_hour or math.inf,
        spent_usd=spent_usd,
        teams_usd=teams_usd,
        store=bool(settings.store_choice.address),
        store_read_only=settings.store_read_only,
        whole_packs=is_bucket(settings.store_choice.address),
    )


async def _last_call(step: Callable[[], Awaitable[object]], otherwise: str) -> None:
    """Make one last call to the cache, with a short timeout in case it no longer responds."""
    try:
        async with asyncio.timeout(_CACHE_END_S):
            await step()
    except (CacheError, TimeoutError) as error:
        _log.info("%s: %r", otherwise, error)


async def _forever(step: Callable[[], Awaitable[None]], *, pause_s: float) -> None:
    """Repeat a step until cancelled. If the cache does not respond, retry after a pause."""
    while True:
        try:
            await step()
        except LockHeldError:
            raise
        except CacheError:  # upkeep reports it
            await asyncio.sleep(_RETRY_S)
        await asyncio.sleep(pause_s)
