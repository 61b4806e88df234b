"""The log line and metrics of each invocation, written with AWS Lambda Powertools."""

from __future__ import annotations

import functools
import os
from collections import Counter
from typing import TYPE_CHECKING, Any

from superdl.super_wire.request import Outcome

if TYPE_CHECKING:
    from aws_lambda_powertools import Logger, Metrics

    from superdl.super_wire.request import PrefetchResult

_SERVICE = "super-prefetch"
_TRUE = frozenset({"1", "y", "yes", "t", "true", "on"})  # as Powertools reads its switches


class Telemetry:
    """The logger and metrics of this process."""

    def __init__(self, log_level: str) -> None:
        # Workers turn both off, by SUPER_LOG_LEVEL and POWERTOOLS_METRICS_DISABLED.
        self._level, self._is_logging = log_level, log_level in {"DEBUG", "INFO"}
        # With this switch, Powertools does not flush, but still prints after every hundred values.
        self._is_metering = os.environ.get("POWERTOOLS_METRICS_DISABLED", "").lower() not in _TRUE

    # Imported for the first output, because Powertools takes a fifth of a function's import time.
    @functools.cached_property
    def _logger(self) -> Logger:
        from aws_lambda_powertools import Logger

        return Logger(service=_SERVICE, level=self._level)

    @functools.cached_property
    def _metrics(self) -> Metrics:
        from aws_lambda_powertools import Metrics

        return Metrics(namespace="SUPER", service=_SERVICE)

    def warmed(self, *, cold_start: bool, golden: str) -> None:
        """Log a warm event."""
        if self._is_logging:
            self._logger.info("warmed", extra={"cold_start": cold_start, "golden": golden})

    def finished(self, result: PrefetchResult, context: Any) -> None:
        """Log and count a prefetch request. ``context`` is the handler's."""
        counts = Counter(result.outcomes)
        if self._is_logging:
            extra = {
                "request_id": result.request_id,
                "function_request_id": context.aws_request_id,
                "cold_start": result.cold_start,
                "outcomes": dict(counts),
                "duration_ms": result.duration_us // 1000,
                "messages": list(result.messages.values())[:3],
                "store_trouble": result.store_trouble,
            }
            self._logger.info("prefetched", extra=extra)
        if not self._is_metering:
            return
        from aws_lambda_powertools.metrics import MetricUnit

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
