"""Log each change on one line, and keep the job history in the cache."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from superdl.coordinator.core import Spending
from superdl.coordinator.server.log_handler import log_counts
from superdl.coordinator.server.statistics import job_stats
from superdl.super_wire import coordinator_pb2 as pb
from superdl.super_wire.display import counted, some_of
from superdl.super_wire.errors import CacheError
from superdl.super_wire.keys import HISTORY_KEY

if TYPE_CHECKING:
    from collections.abc import Iterable

    from superdl.coordinator.cache.cache import Cache
    from superdl.coordinator.core import ExecutorState, Job
    from superdl.coordinator.server.engine import Engine

_log = logging.getLogger(__name__)

_EVERY_S = 60.0
_JOBS_PER_STEP = 10
HISTORY_PAUSE_S = 2.0
_JOBS_MAX = 256
_BYTES_MAX = 2**20
_SOURCE_MAX = 512
_TIME_MAX = 1e11


class Watch:
    """Watches the core and logs its changes. Call :meth:`step` every second."""

    def __init__(self, engine: Engine, history: JobHistory | None = None) -> None:
        self._engine = engine
        self.history = history or JobHistory()
        self._core = engine.core
        self._jobs: dict[str, Job] = {}
        self._opened_s: dict[str, float] = {}
        self._next = 0
        self._lapsed: set[tuple[str, int]] = set()
        # When each throttled executor was last logged.
        self._throttled_s: dict[int, float] = {}
        self._thrashes = False
        self._stopped: set[str] = set()
        self._capped_s: float | None = None

    def step(self) -> None:
        """Log what has changed since the last step, and the counts for the last minute."""
        self.look()
        jobs = list(self._jobs.values())
        for offset in range(min(len(jobs), _JOBS_PER_STEP)):  # in turn, because of their number
            self._note(jobs[(self._next + offset) % len(jobs)])
        self._next += _JOBS_PER_STEP
        self._look_at_ranks()
        for member in self._core.state.fleet.executors:
            self._look_at_executor(member)
        self._look_at_teams()
        if self._thrashes and not self._core.thrashing:  # the core warns when it begins
            _log.info("thrashing has ended: samples are no longer dropped and soon produced again")
        self._thrashes = self._core.thrashing
        if self._core.state.ledger.spending is not Spending.FREELY:  # the ledger warns about the caps
            self._capped_s = self._core.now_s
        elif self._capped_s is not None and self._core.now_s >= self._capped_s + _EVERY_S:
            self._capped_s = None
            _log.info("spending has not been near a cap for %g s: producing everything ahead again", _EVERY_S)
        log_counts()

    def _look_at_teams(self) -> None:
        state = self._core.state
        stopped = {team.facts.name for team in state.teams if state.turn(team.facts.name) is None}
        for name in sorted(stopped - self._stopped):
            _log.warning("%s", state.teams.refusal(name), extra={"cause": f"team {name} has reached its cap"})
        for name in sorted(self._stopped - stopped):
            _log.info("team %s may spend again", name)
        self._stopped = stopped

    async def end(self) -> None:
        """Save the final statistics of the open jobs."""
        for job in self._jobs.values():
            self._note(job)
        await self.history.keep()

    def look(self) -> None:
        """Log the jobs that were opened or closed. Call this before and after opening or closing a job."""
        now = self._core.state.jobs
        closed = [job for name, job in self._jobs.items() if now.get(name) is not job]
        opened = [job for name, job in now.items() if self._jobs.get(name) is not job]
        self._jobs = dict(now)
        for job in closed:
            self._note(job, time.time())
            did, usd = job.counters, self._core.state.ledger.job_costs(job.name).usd
            words = f"{did.batches_read:,} batches read, {did.wait_s:.1f} s waited, {usd:.4f} USD"
            _log.info("job %s closed: %s", job.name, words, extra=self._about(job))
        for job in opened:
            source = self._engine.datasets[job.dataset].listing.source
            size = f"{counted(job.plan.size, 'sample')}, {counted(job.plan.replicas, 'rank')}"
            _log.info("job %s opened: %s, %s", job.name, source, size, extra=self._about(job))
            self._opened_s[job.name] = time.time()
            self._note(job)

    def note(self, name: str) -> None:
        """Record the position of a job that is about to close. The position is unknown afterwards."""
        if job := self._jobs.get(name):
            self._note(job)

    def ended(self) -> list[pb.JobStats]:
        """Return the statistics of the closed jobs in the history."""
        return [job for key, job in self.history.jobs.items() if key not in self._opened_s.items()]

    def _note(self, job: Job, closed_s: float = 0.0) -> None:
        dataset = self._engine.datasets.opened.get(job.dataset)
        stats = job_stats(self._core, job, dataset.listing.source if dataset else "")
        opened_s = self._opened_s.pop(job.name) if closed_s else self._opened_s[job.name]
        self.history.note(stats, opened_s, closed_s)

    def _about(self, job: Job) -> dict[str, object]:
        dataset = self._engine.datasets.opened.get(job.dataset)
        return {"job": job.name, **({"dataset": dataset.listing.source} if dataset else {})}

    def _look_at_ranks(self) -> None:
        lapsed = {cursor.key for cursor in self._core.state.cursors if cursor.lapsed}
        back = {key for key in self._lapsed - lapsed if self._core.state.cursor(*key) is not None}
        self._log_ranks("no sign of life, so nothing is produced ahead", lapsed - self._lapsed)
        self._log_ranks("back", back)
        self._lapsed = lapsed

    def _log_ranks(self, what: str, keys: Iterable[tuple[str, int]]) -> None:
        names = [f"{job}, rank {rank}" for job, rank in sorted(keys)]
        if len(names) == 1:
            ((name, rank),) = keys
            about = {**self._about(self._core.state.jobs[name]), "rank": rank}
            _log.info("job %s: %s", names[0], what, extra=about)
        elif names:
            _log.info("%s: %s (%s)", counted(len(names), "rank"), what, some_of(names))

    def _look_at_executor(self, member: ExecutorState) -> None:
        now, concurrency = self._core.now_s, member.concurrency
        times, about = concurrency.throttled_lately(now), {"executor": member.name}
        if times and now >= self._throttled_s.get(member.number, -_EVERY_S) + _EVERY_S:
            self._throttled_s[member.number] = now
            capacity, limit = concurrency.capacity, concurrency.limit
            words = f"{counted(times, 'request')} in 60 s, concurrency {limit:,} instead of {capacity:,}"
            _log.warning(
                "%s throttled: %s", member.name, words, extra={**about, "cause": f"throttled at {now}"}
            )
        elif not times and self._throttled_s.pop(member.number, None) is not None:
            _log.info("%s is no longer throttled", member.name, extra=about)


class JobHistory:
    """The most recent 256 jobs by name and opening time, stored in the cache if there is one."""

    def __init__(self, cache: Cache | None = None) -> None:
        self._cache = cache
        # In order of their updates. A killed coordinator also leaves the last statistics of its open jobs.
        self.jobs: dict[tuple[str, float], pb.JobStats] = {}
        self._changed = False

    def note(self, stats: pb.JobStats, opened_s: float, closed_s: float = 0.0) -> None:
        """Record the statistics of an open or closed job. ``opened_s`` and ``closed_s`` are Unix times."""
        before = self.jobs.pop((stats.job, opened_s), stats)
        stats.opened_s, stats.closed_s = opened_s, closed_s
        stats.source = (stats.source or before.source)[:_SOURCE_MAX]
        if closed_s:  # a closed job's position is unknown
            stats.epoch, stats.position, stats.interval_s = before.epoch, before.position, before.interval_s
        self.jobs[stats.job, opened_s] = stats
        if len(self.jobs) > _JOBS_MAX:
            del self.jobs[next(iter(self.jobs))]
        self._changed = True

    async def load(self) -> None:
        """Load the history saved by earlier coordinators of this cache."""
        if self._cache is not None:
            try:
                jobs = read_history(await self._cache.get(HISTORY_KEY))
                self.jobs = {(job.job, job.opened_s): job for job in jobs}
            except (CacheError, ValueError) as error:
                _log.warning("the history of jobs in the cache cannot be read, so it starts over: %s", error)

    async def keep(self) -> None:
        """Save the history if it has changed."""
        if self._cache is not None and self._changed:
            self._changed = False
            try:
                content = pb.JobStatsList(history=self.jobs.values()).SerializeToString()
                await self._cache.set(HISTORY_KEY, content)
            except CacheError:  # upkeep reports it
                self._changed = True


def read_history(content: bytes) -> list[pb.JobStats]:
    """Parse what :class:`JobHistory` saved. Raises ``ValueError`` for anything else."""
    if len(content) > _BYTES_MAX:
        raise ValueError(f"it is too long ({len(content):,} bytes)")
    try:
        jobs = list(pb.JobStatsList.FromString(content).history)
    except DecodeError as error:
        raise ValueError(str(error)) from error

    def is_valid(job: pb.JobStats) -> bool:
        return bool(job.job) and 0 <= job.opened_s < _TIME_MAX and 0 <= job.closed_s < _TIME_MAX

    return list(filter(is_valid, jobs))[-_JOBS_MAX:]
