"""The figures that alarms watch, once a minute as a line in CloudWatch's embedded metric format.

Such a log line becomes a metric, so a coordinator on AWS needs no agent, permission or call for it:
https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/CloudWatch_Embedded_Metric_Format_Specification.html
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any, TextIO

from superdl.coordinator.core import Spending

if TYPE_CHECKING:
    from collections.abc import Callable

    from superdl.coordinator.cache.info import CacheLoad
    from superdl.coordinator.core import Core

__all__ = ["EMF_PAUSE_S", "EmfLines"]

EMF_PAUSE_S = 60.0
_NAMESPACE = "SUPER"


class EmfLines:
    """A writer of metric lines.

    Args:
        core: the source of the figures.
        owner: the coordinator's name, the only dimension of the metrics.
        load: returns the load of the cache's nodes.
        to: the stream to write to; standard output by default.
    """

    def __init__(
        self, core: Core, owner: str, load: Callable[[], CacheLoad], to: TextIO | None = None
    ) -> None:
        self._core = core
        self._owner = owner
        self._load = load
        self._to = to or sys.stdout
        self._waited_us: dict[str, int] = {}
        self._evicted_keys = 0
        self._said_s = core.now_s

    async def tell(self) -> None:
        """Write a line with the figures since the last one."""
        state, now = self._core.state, time.monotonic()
        passed_s, self._said_s = now - self._said_s, now
        waited_us = {job.name: sum(job.stalls.wait_us.values()) for job in self._core.jobs}
        more_us = sum(max(0, us - self._waited_us.get(name, 0)) for name, us in waited_us.items())
        self._waited_us = waited_us
        load = self._load()
        evicted_keys, self._evicted_keys = load.evicted_keys - self._evicted_keys, load.evicted_keys
        ranks = sum(not cursor.lapsed for cursor in state.cursors)
        self._write(
            {
                "WaitingPercent": 100 * more_us / 1e6 / (ranks * passed_s) if ranks and passed_s > 0 else 0.0,
                "FullestNodePercent": 100 * load.fullest_share,
                "BusiestNodePercent": 100 * load.busiest_share,
                "EvictedKeys": evicted_keys,
                "Thrashing": int(self._core.thrashing),
                "Throttles": sum(
                    executor.concurrency.throttled_lately(now) for executor in state.fleet.executors
                ),
                "SpendingLimited": list(Spending).index(state.ledger.spending),
            }
        )

    def _write(self, values: dict[str, float]) -> None:
        metrics = [
            {"Name": name, "Unit": "Percent" if name.endswith("Percent") else "Count"} for name in values
        ]
        described = {"Namespace": _NAMESPACE, "Dimensions": [["Coordinator"]], "Metrics": metrics}
        line: dict[str, Any] = {
            "_aws": {"Timestamp": int(time.time() * 1000), "CloudWatchMetrics": [described]},
            "Coordinator": self._owner,
            **values,
        }
        self._to.write(json.dumps(line) + "\n")
        self._to.flush()
