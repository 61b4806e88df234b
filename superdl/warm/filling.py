"""The job that warms: an ordinary sampler's, whose batches are not read but waited for.

Each batch is asked after by its records' headers until all of it is in the cache or failed; what is missing
is told by read reports, as a reader tells it, so that misses, losses and retries are the coordinator's as
ever. It stops where the cache is full or the money spent (:mod:`superdl.warm.allowance`). Waiting is
bounded: a batch of which nothing comes for ``patience_s`` ends it.
"""

from __future__ import annotations

import contextlib
import math
import random
import time
from typing import TYPE_CHECKING

from superdl.sampler import SuperSampler
from superdl.super_dataset.reading import Backoff
from superdl.super_wire.errors import CacheError, CoordinatorError
from superdl.super_wire.ids import ID_BYTES
from superdl.super_wire.read_report import ReadReport
from superdl.super_wire.record import HEADER_BYTES, SPENDING_CAP
from superdl.warm.allowance import Allowance, Means, batch_size_for
from superdl.warm.estimate import memory_of
from superdl.warm.headers import HeaderLink
from superdl.warm.report import Counted, Ended, Limits, WarmReport

if TYPE_CHECKING:
    from collections.abc import Callable

    from superdl.super_dataset import SuperDataset
    from superdl.super_wire.batch_ref import BatchRef
    from superdl.warm.estimate import Estimate

__all__ = ["fill"]

_STATS_EVERY_S = 0.5
_FAILURES_LISTED = 20
_ROOM_KEPT = 0.01
"""Of the budget: what others may take between two looks."""

_QUIET_S = 2.0
_SETTLE_S = 0.02

_MONEY_KEPT = 0.05
"""Of the money: hedges and retries of what is under way."""


def fill(
    dataset: SuperDataset,
    estimate: Estimate,
    *,
    coordinator: str,
    limits: Limits,
    shuffle: bool,
    seed: int,
    tell: Callable[[WarmReport], None],
) -> WarmReport:
    """Warm the cache in the order in which a job with this seed reads first.

    Args:
        dataset: what to warm.
        estimate: made for it just now.
        coordinator: its address.
        limits: where to stop.
        shuffle: whether the coming job shuffles; else in the order of keys.
        seed: of its shuffle.
        tell: called with the state as it gets on.

    A coordinator or a cache that refuses or is gone ends it, and the report says so.
    """
    report = WarmReport(estimate.samples)
    sure = not estimate.record_bytes_guessed and limits.max_usd == math.inf
    lookahead, memory = estimate.lookahead_batches, memory_of(estimate.record_bytes)
    size = estimate.samples
    while True:  # in smaller batches a sample costs more, and so fewer can be paid for
        means = Means(estimate.free_bytes, memory, limits.max_usd, estimate.sample_usd(size))
        before, size = size, batch_size_for(estimate.samples, means, lookahead=lookahead, sure=sure)
        if size >= before or not size:
            break
    if not size:
        full = means.by_room <= means.by_money
        report.ended = Ended.FULL if full else Ended.MAX_USD
        what = f"{max(0, estimate.free_bytes):,} bytes" if full else f"{limits.max_usd:g} USD"
        report.why = f"{what} are not enough for a first look ahead; what is there already was not looked at"
        return report
    dataset.reads_straight = False  # what lies in the store comes into the cache too
    try:
        sampler = SuperSampler(
            dataset,
            batch_size=size,
            shuffle=shuffle,
            seed=seed,
            rank=0,
            num_replicas=1,
            coordinator=coordinator,
        )
    except (CacheError, CoordinatorError) as error:
        report.ended, report.why = Ended.STALLED, f"{type(error).__name__}: {error}"
        return report
    try:
        _Filling(sampler, Allowance(len(sampler), size, lookahead), limits, report, means, tell).run()
    finally:
        with contextlib.suppress(CacheError):  # the job is closed; its read reports are gone with the cache
            sampler.close()
    return report


class _StopError(Exception):
    """There is a reason to end."""

    def __init__(self, ended: Ended, why: str = "") -> None:
        super().__init__(why)
        self.ended, self.why = ended, why


class _Filling:
    """One run of the job; see :func:`fill`."""

    def __init__(
        self,
        sampler: SuperSampler,
        allowance: Allowance,
        limits: Limits,
        report: WarmReport,
        guess: Means,
        tell: Callable[[WarmReport], None],
    ) -> None:
        self._sampler = sampler
        self._limits = limits
        self._report = report
        self._guess = guess
        self._tell = tell
        self._counted = Counted(sampler)
        self._allowance = allowance
        self._held: list[tuple[BatchRef, ReadReport]] = []
        self._backoff = Backoff(limits.patience_s)
        self._random = random.Random()  # noqa: S311  # jitter guards no secret
        self._link: HeaderLink | None = None
        self._begin_s = time.monotonic()

    def run(self) -> None:
        """Go through the source until there is a reason to end."""
        try:
            self._go_through()
        except _StopError as stop:
            self._report.ended, self._report.why = stop.ended, stop.why
        except (CacheError, CoordinatorError) as error:
            self._report.ended, self._report.why = Ended.STALLED, f"{type(error).__name__}: {error}"
        except KeyboardInterrupt:
            self._report.ended = Ended.INTERRUPTED
        finally:
            self._report.seconds = time.monotonic() - self._begin_s
            self._settle()
            if self._link is not None:
                self._link.close()
        self._tell(self._report)

    def _settle(self) -> None:
        """Have all that functions did counted: records are there before the coordinator hears of it."""
        end_s = time.monotonic() + _QUIET_S
        self._counted.look(self._report)
        while self._counted.known and self._counted.working and time.monotonic() < end_s:
            time.sleep(_SETTLE_S)
            self._counted.look(self._report)

    def _go_through(self) -> None:
        batches = iter(self._sampler)
        self._look()
        while self._allowance.seen < self._allowance.batches:
            self._make_way()
            ref = next(batches)
            if self._link is None:
                self._link = HeaderLink(ref.cache)
            self._held.append((ref, self._wait_for(ref, self._link)))
            self._allowance.seen += 1
            self._release(fresh=False)
        self._release(fresh=True)

    def _make_way(self) -> None:
        """See that one more batch may be asked for.

        Raises:
            _StopError: it may not.
        """
        self._check_time()
        began_s, attempt = time.monotonic(), 0
        while not self._allowance.may_take():
            attempt += 1
            self._release(fresh=True)
            if self._allowance.may_take():
                return
            silent_s = time.monotonic() - began_s
            if not self._counted.known:
                if silent_s > self._limits.patience_s:
                    why = f"the coordinator has not answered for {self._limits.patience_s:g} s"
                    raise _StopError(Ended.STALLED, why)
            elif not self._counted.in_flight or silent_s > _QUIET_S:
                means = self._means()  # what is in flight has room reserved that was counted as needed, too
                raise _StopError(Ended.FULL if means.by_room <= means.by_money else Ended.MAX_USD)
            time.sleep(self._backoff.delay_s(attempt, self._random.random()))

    def _release(self, *, fresh: bool) -> None:
        """Report batches as read, as far as what comes into view then has room and can be paid for."""
        if self._link is None or not self._held:
            return
        # What a sample costs was guessed until some are paid for, and the guess may be far too low. Where
        # room gets scarce, others may be filling it too.
        near = self._limits.max_usd < math.inf or self._means().by_room < self._allowance.scarce
        if fresh or near or self._counted.age_s() > _STATS_EVERY_S:
            self._look()
        count = self._allowance.releasable(self._means())
        for ref, report in self._held[:count]:
            self._link.report(ref.job, report)
        del self._held[:count]
        self._allowance.released += count

    def _look(self) -> None:
        seen = self._allowance.seen
        if self._counted.look(self._report):  # the job was opened again, where its next batch is
            self._allowance.released = seen
            self._held.clear()
        self._allowance.accounted = seen
        self._tell(self._report)

    def _means(self) -> Means:
        """What there is now; what a sample takes is guessed until some are there, or paid for."""
        report, guess = self._report, self._guess
        sample_bytes, usd = guess.sample_bytes, guess.sample_usd
        if report.warm:
            sample_bytes = memory_of(round(report.record_bytes / report.warm))
        if report.produced and report.usd:
            usd = report.usd / report.produced
        kept = _ROOM_KEPT * self._counted.budget_bytes
        spent_usd = report.usd + self._counted.in_flight * usd
        left_usd = (1 - _MONEY_KEPT) * self._limits.max_usd - spent_usd
        return Means(self._counted.free_bytes - kept, sample_bytes, left_usd, usd)

    def _wait_for(self, ref: BatchRef, link: HeaderLink) -> ReadReport:
        """Wait until every sample of a batch is there or failed; what to report of it then.

        Raises:
            _StopError: time is up, or the coordinator may spend no more.
        """
        missing, first, attempt = list(range(len(ref))), None, 0
        moved_s = began_s = time.monotonic()
        while True:
            attempt += 1
            seen = link.look(ref.sample_ids, missing)
            self._report.warm += len(seen.present)
            self._report.record_bytes += sum(seen.present.values())
            for offset in seen.tombstones:
                self._failed(ref, offset, link)
            done = {*seen.present, *seen.tombstones}
            if done:
                moved_s = time.monotonic()
                missing = [offset for offset in missing if offset not in done]
            if first is None and not seen.trouble:
                first = len(ref) - len(missing)
            read = ReadReport(
                rank=ref.rank,
                epoch=ref.epoch,
                position=ref.position,
                samples=len(ref),
                hits=first or 0,
                wait_us=int(1e6 * (time.monotonic() - began_s)) if attempt > 1 else 0,
                read_us=0,
                check_us=0,
                size_bytes=HEADER_BYTES * (len(ref) - len(missing)),
                attempt=attempt,
                done=int(not missing),
                missed=tuple(sorted(seen.absent)),
                corrupt=tuple(sorted(seen.corrupt)),
            )
            if not missing:
                return read
            link.report(ref.job, read)
            self._wait(ref, missing, attempt, moved_s, seen.trouble)

    def _wait(self, ref: BatchRef, missing: list[int], attempt: int, moved_s: float, trouble: str) -> None:
        self._check_time()
        if time.monotonic() - moved_s > self._limits.patience_s:
            because = (
                f"the cache does not answer: {trouble}"
                if trouble
                else "are the coordinator's functions running (superdl stats, its log)?"
            )
            raise _StopError(
                Ended.STALLED,
                f"{len(missing)} of a batch's {len(ref)} samples have not come for "
                f"{self._limits.patience_s:g} s, the first of them {ref.name_of(missing[0])}: {because}",
            )
        if self._counted.age_s() > _STATS_EVERY_S:
            self._look()
        time.sleep(self._backoff.delay_s(attempt, self._random.random()))

    def _check_time(self) -> None:
        if time.monotonic() - self._begin_s > self._limits.timeout_s:
            raise _StopError(Ended.TIMEOUT, f"{self._limits.timeout_s:g} s are over")

    def _failed(self, ref: BatchRef, offset: int, link: HeaderLink) -> None:
        """Count a tombstone, and list the first of them.

        Raises:
            _StopError: it says that no more money may be spent.
        """
        stone = link.tombstone(ref.sample_ids[offset * ID_BYTES : (offset + 1) * ID_BYTES])
        if stone is not None and stone.reason == SPENDING_CAP:
            raise _StopError(Ended.SPENDING_CAP, stone.message)
        self._report.failed += 1
        if len(self._report.failures) < _FAILURES_LISTED:
            reason = f"{stone.reason}: {stone.message}" if stone is not None else "its tombstone has gone"
            self._report.failures.append({"key": ref.name_of(offset), "reason": reason})
