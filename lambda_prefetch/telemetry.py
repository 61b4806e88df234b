"""The log line and metrics of each invocation, written with AWS Lambda Powertools."""

from __future__ import annotations

import functools
import os
from collections import Counter
from typing import TYPE_CHECKING, Any

from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.metrics import MetricUnit
from aws_lambda_powertools.shared.functions import strtobool

from superdl.super_wire.request import Outcome

if TYPE_CHECKING:
    from superdl.super_wire.request import PrefetchResult

_SERVICE = "super-prefetch"


class Telemetry:
    """The logger and metrics of this process."""

    def __init__(self, log_level: str) -> None:
        # Lambda collects the output. Elsewhere SUPER_LOG_LEVEL and POWERTOOLS_METRICS_DISABLED turn it off.
        self._logger = Logger(service=_SERVICE, level=log_level)
        self._metrics = Metrics(namespace="SUPER", service=_SERVICE)
        # The switch in Powertools stops flushing, but not the output after every hundred values.
        self._is_metering = not strtobool(os.environ.get("POWERTOOLS_METRICS_DISABLED") or "false")

    def warmed(self, *, cold_start: bool, golden: str) -> None:
        """Log an answered warm event."""
        self._logger.info("warmed", extra={"cold_start": cold_start, "golden": golden})

    def finished(self, result: PrefetchResult, context: Any) -> None:
        """Log and count an answered prefetch request. ``context`` is that of the handler."""
        counts = Counter(result.outcomes)
        self._logger.info(
            "prefetched",
            extra={
                "request_id": result.request_id,
                "function_request_id": context.aws_request_id,
                "cold_start": result.cold_start,
                "outcomes": dict(counts),
                "duration_ms": result.duration_us // 1000,
                "messages": list(result.messages.values())[:3],
                "store_trouble": result.store_trouble,
            },
        )
        if not self._is_metering:
            return
        samples, cached = len(result.outcomes), counts[Outcome.CACHED]
        self._metrics.set_default_dimensions(function_name=context.function_name)
        for name, unit, value in (
            ("ColdStart", MetricUnit.Count, int(result.cold_start)),
            ("SamplesCached", MetricUnit.Count, cached),
            ("SamplesFailed", MetricUnit.Count, samples - cached),
            ("SourceBytes", MetricUnit.Bytes, result.source_bytes),
            ("RecordBytes", MetricUnit.Bytes, sum(result.record_bytes)),
            ("StoreBytes", MetricUnit.Bytes, result.store_bytes),
            ("StoreTroubles", MetricUnit.Count, int(bool(result.store_trouble))),
            ("FetchTime", MetricUnit.Microseconds, result.fetch_us),
            ("DecodeTime", MetricUnit.Microseconds, result.decode_us),
            ("PushTime", MetricUnit.Microseconds, result.push_us),
        ):
            self._metrics.add_metric(name=name, unit=unit, value=value)
        self._metrics.flush_metrics()


@functools.cache
def telemetry(log_level: str) -> Telemetry:
    """Return the process's telemetry."""
    return Telemetry(log_level)
