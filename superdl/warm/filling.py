"""The job that warms: nobody reads it, and the coordinator fills the cache or the store with its samples.

The coordinator says how far that is whenever it is asked, and goes on for as long as it is. One that has lost
its memory is told again what to do: what is there already, it finds. Waiting is bounded: where nothing moves
for ``patience_s``, it ends.
"""

from __future__ import annotations

import math
import os
import time
from typing import TYPE_CHECKING

from superdl.sampler.rpc import FIRST_CONTACT, RUNNING, Client
from superdl.super_wire.errors import CacheError, ConfigError, CoordinatorError, UnknownJobError
from superdl.warm.estimate import standing_of
from superdl.warm.report import Counted, Ended, Limits, WarmReport

if TYPE_CHECKING:
    from collections.abc import Callable

    from superdl.super_dataset import SuperDataset
    from superdl.warm.estimate import Estimate, Standing

__all__ = ["fill"]

_POLL_S = 0.05
_BATCH = 64
_SHARE = 1 / 4
"""Of the cache: what a batch takes at most, which the coordinator checks as if it were read."""


def fill(
    dataset: SuperDataset,
    standing: Standing,
    estimate: Estimate,
    *,
    coordinator: str,
    limits: Limits,
    shuffle: bool,
    seed: int,
    tell: Callable[[WarmReport], None],
) -> WarmReport:
    """Fill in the order in which a job with this seed reads first.

    Args:
        dataset: what to warm.
        standing: what the coordinator has just said of it.
        estimate: made of that.
        coordinator: its address.
        limits: where to stop.
        shuffle: whether the coming job shuffles; else in the order of keys.
        seed: of its shuffle.
        tell: called with the state as it gets on.

    A coordinator that refuses or is gone ends it, and the report says so.
    """
    report, client = WarmReport(estimate.samples, to_store=estimate.to_store), Client(coordinator)
    filling = _Filling(client, dataset, standing, estimate, limits, report, shuffle=shuffle, seed=seed)
    begin_s = time.monotonic()
    with client.hold():
        try:
            while not filling.step(time.monotonic() - begin_s):
                tell(report)
                time.sleep(_POLL_S)
        except (CacheError, ConfigError, CoordinatorError) as error:  # a store may be full, or gone
            report.ended, report.why = Ended.STALLED, f"{type(error).__name__}: {error}"
        except KeyboardInterrupt:
            report.ended = Ended.INTERRUPTED
        finally:
            report.seconds = time.monotonic() - begin_s
            filling.close()
    tell(report)
    return report


class _Filling:
    """One run of the job; see :func:`fill`."""

    def __init__(
        self,
        client: Client,
        dataset: SuperDataset,
        standing: Standing,
        estimate: Estimate,
        limits: Limits,
        report: WarmReport,
        *,
        shuffle: bool,
        seed: int,
    ) -> None:
        from superdl.super_wire import coordinator_pb2 as pb

        self._client, self._dataset, self._limits = client, dataset, limits
        self._report, self._counted = report, Counted()
        self._run = os.urandom(16).hex()
        fitting = int(_SHARE * estimate.budget_bytes / max(estimate.record_bytes, 1))
        self._open = pb.OpenJobRequest(
            job=f"warm-{self._run}",
            batch_size=max(1, min(_BATCH, estimate.samples, fitting)),
            replicas=1,
            seed=seed,
            shuffle=shuffle,
            dataset_id=standing.dataset_id,
            fills=True,
        )
        self._fill = pb.FillUpRequest(
            job=self._open.job,
            max_bytes=limits.max_bytes,
            max_usd=0.0 if limits.max_usd == math.inf else limits.max_usd,
            to_store=estimate.to_store,
        )
        self._ask = pb.GetJobStatsRequest(jobs=[self._open.job])
        self._close = pb.CloseJobRequest(job=self._open.job)
        self._is_open = False
        self._moved_s = 0.0
        self._before = (0, 0, 0)

    def step(self, now_s: float) -> bool:
        """See how far it is; whether it is over."""
        try:
            if not self._is_open:
                self._client.call("OpenJob", self._open, RUNNING)
                self._is_open = True
            told = self._client.call("FillUp", self._fill, RUNNING)
            stats = self._client.call("GetJobStats", self._ask, RUNNING)
        except UnknownJobError:
            return self._begin_again()
        report = self._report
        self._counted.look(stats.jobs[0], stats.cache, report)
        report.warm, report.failed, report.record_bytes = told.there, told.failed, told.size_bytes
        report.failures = [{"key": one.key, "reason": one.message} for one in told.failures]
        if told.ended:
            report.ended = Ended(told.ended)
            return True
        now = (told.there, told.failed, report.produced)
        if now != self._before:
            self._before, self._moved_s = now, now_s
        return self._is_enough(now_s, stats.cache.store_trouble)

    def _begin_again(self) -> bool:
        """The coordinator was restarted, and may have to list again; it is not over."""
        found = standing_of(self._client.address, self._dataset, run=self._run, listed=lambda _: None)
        self._open.dataset_id, self._is_open = found.dataset_id, False
        self._counted.forget()
        return False

    def close(self) -> None:
        """Say goodbye; a coordinator that hears it not forgets the job by itself."""
        try:
            self._client.call("CloseJob", self._close, FIRST_CONTACT)
        except (CacheError, CoordinatorError):
            return

    def _is_enough(self, now_s: float, store_trouble: str) -> bool:
        report, limits = self._report, self._limits
        if now_s > limits.timeout_s:
            report.ended, report.why = Ended.TIMEOUT, f"{limits.timeout_s:g} s are over"
        elif now_s - self._moved_s > limits.patience_s:
            trouble = store_trouble if report.to_store else ""
            because = trouble or "are the coordinator's functions running (superdl stats, its log)?"
            left = report.samples - report.warm - report.failed
            report.ended = Ended.STALLED
            report.why = f"none of {left:,} samples has come for {limits.patience_s:g} s: {because}"
        else:
            return False
        return True
