"""What the function tells its operator, by AWS Lambda Powertools: a log line and metrics per invocation.

The structured line and the CloudWatch metrics (EMF) go to standard output, where Lambda collects them. Who
runs the function elsewhere turns them down with ``SUPER_LOG_LEVEL`` and ``POWERTOOLS_METRICS_DISABLED``. What
the coordinator needs to know is in the result, never here.

With ``SUPER_TRACE=1`` each request is a segment in AWS X-Ray as well, unless ``POWERTOOLS_TRACE_DISABLED``
says otherwise. The X-Ray SDK is then needed, which is no part of the function's package: it would be in every
cold start for the few who trace.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.metrics import MetricUnit
from aws_lambda_powertools.shared.functions import strtobool

from superdl.super_wire.errors import ConfigError
from superdl.super_wire.request import Outcome

if TYPE_CHECKING:
    from aws_lambda_powertools import Tracer

    from superdl.super_wire.request import PrefetchResult

__all__ = ["Telemetry", "telemetry"]

_SERVICE = "super-prefetch"
_MAX_MESSAGES = 3


class Telemetry:
    """Logger and metrics of this process, and its tracer if there is to be one.

    Raises:
        ConfigError: the X-Ray SDK is needed and not there.
    """

    def __init__(self, log_level: str, *, trace: bool = False) -> None:
        self._logger = Logger(service=_SERVICE, level=log_level)
        self._metrics = Metrics(namespace="SUPER", service=_SERVICE)
        # Powertools' own switch stops flushing, and not what it prints once a hundred values are there.
        self._is_metering = not strtobool(os.environ.get("POWERTOOLS_METRICS_DISABLED") or "false")
        self._tracer = _make_tracer() if trace else None

    def segment(self, name: str) -> AbstractContextManager[Any]:
        """What is done within is a subsegment of the invocation's trace, if there is one."""
        if self._tracer is None or self._tracer.disabled:
            return nullcontext()
        found: AbstractContextManager[Any] = self._tracer.provider.in_subsegment(name=f"## {name}")
        return found

    def warmed(self, *, cold_start: bool, golden: str) -> None:
        """A warm event was answered."""
        self._logger.info("warmed", extra={"cold_start": cold_start, "golden": golden})

    def finished(self, result: PrefetchResult, context: Any) -> None:
        """A prefetch request was answered; ``context`` is Lambda's."""
        counts = Counter(result.outcomes)
        self._logger.info(
            "prefetched",
            extra={
                "request_id": result.request_id,
                "function_request_id": context.aws_request_id,
                "cold_start": result.cold_start,
                "outcomes": dict(counts),
                "duration_ms": result.duration_us // 1000,
                "messages": list(result.messages.values())[:_MAX_MESSAGES],
            },
        )
        if self._is_metering:
            self._meter(result, counts, context)
        if self._tracer is not None:
            self._tracer.put_annotation(key="ColdStart", value=result.cold_start)
            self._tracer.put_annotation(key="RequestId", value=result.request_id)
            self._tracer.put_metadata(key="outcomes", value=dict(counts))

    def _meter(self, result: PrefetchResult, counts: Counter[str], context: Any) -> None:
        self._metrics.set_default_dimensions(function_name=context.function_name)
        samples, cached = len(result.outcomes), counts[Outcome.CACHED]
        for name, unit, value in (
            ("ColdStart", MetricUnit.Count, int(result.cold_start)),
            ("SamplesCached", MetricUnit.Count, cached),
            ("SamplesFailed", MetricUnit.Count, samples - cached),
            ("SourceBytes", MetricUnit.Bytes, sum(result.source_bytes)),
            ("RecordBytes", MetricUnit.Bytes, sum(result.record_bytes)),
            ("FetchTime", MetricUnit.Microseconds, sum(result.fetch_us)),
            ("DecodeTime", MetricUnit.Microseconds, sum(result.decode_us)),
            ("PushTime", MetricUnit.Microseconds, sum(result.push_us)),
        ):
            self._metrics.add_metric(name=name, unit=unit, value=value)
        self._metrics.flush_metrics()


def _make_tracer() -> Tracer:
    from aws_lambda_powertools import Tracer

    if importlib.util.find_spec("aws_xray_sdk") is None:
        raise ConfigError(
            "SUPER_TRACE is 1, and the function has no aws_xray_sdk: add it to its package (make lambda-zip "
            "leaves it out; docs/containers.md says how), or leave SUPER_TRACE out"
        )
    # Its patches of HTTP libraries would trace each GET, and none of those of the lean client.
    return Tracer(service=_SERVICE, auto_patch=False)


@functools.cache
def telemetry(log_level: str, *, trace: bool = False) -> Telemetry:
    """The process's telemetry, made by the first invocation."""
    return Telemetry(log_level, trace=trace)
