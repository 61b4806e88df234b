"""The log line and metrics for each invocation, written with AWS Lambda Powertools."""

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


# Both are created for the first output, because Powertools takes a fifth of a function's import time.
@functools.cache
def _logger(level: str) -> Logger:
    from aws_lambda_powertools import Logger

    return Logger(service=_SERVICE, level=level)


@functools.cache
def _metrics() -> Metrics:
    from aws_lambda_powertools import Metrics

    return Metrics(namespace="SUPER", service=_SERVICE)


def log_invocation(result: PrefetchResult, context: Any, level: str) -> None:
    """Log and count a prefetch request. ``context`` is the handler's argument."""
    # Workers turn both off with SUPER_LOG_LEVEL and POWERTOOLS_METRICS_DISABLED.
    if level in {"DEBUG", "INFO"}:
        extra = {
            "request_id": result.request_id,
            "function_request_id": context.aws_request_id,
            "cold_start": result.cold_start,
            "outcomes": dict(Counter(result.outcomes)),
            "duration_ms": result.duration_us // 1000,
            "messages": list(result.messages.values())[:3],
            "store_trouble": result.store_trouble,
        }
        _logger(level).info("prefetched", extra=extra)
    # With this switch, Powertools does not flush, but still prints after every hundred values.
    if os.environ.get("POWERTOOLS_METRICS_DISABLED", "").lower() not in _TRUE:
        _count(result, context)


def _count(result: PrefetchResult, context: Any) -> None:
    from aws_lambda_powertools.metrics import MetricUnit

    metrics, cached = _metrics(), result.outcomes.count(Outcome.CACHED)
    metrics.set_default_dimensions(function_name=context.function_name)
    for name, unit, value in (
        ("ColdStart", MetricUnit.Count, int(result.cold_start)),
        ("SamplesCached", MetricUnit.Count, cached),
        ("SamplesFailed", MetricUnit.Count, len(result.outcomes) - cached),
        ("SourceBytes", MetricUnit.Bytes, result.source_bytes),
        ("RecordBytes", MetricUnit.Bytes, sum(result.record_bytes)),
        ("StoreBytes", MetricUnit.Bytes, result.store_bytes),
        ("StoreTroubles", MetricUnit.Count, int(bool(result.store_trouble))),
        ("FetchTime", MetricUnit.Microseconds, result.fetch_us),
        ("DecodeTime", MetricUnit.Microseconds, result.decode_us),
        ("PushTime", MetricUnit.Microseconds, result.push_us),
    ):
        metrics.add_metric(name=name, unit=unit, value=value)
    metrics.flush_metrics()
