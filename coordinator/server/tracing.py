"""Traces by OpenTelemetry: a share of requests, from plan through function to first read.

A request's span begins when the core has planned it and ends with its answer. The function's time in it comes
from the answer, so that no function has to export anything; one with its own tracing finds the context in the
request (``traceparent``, https://www.w3.org/TR/trace-context/). The read of the request's first sample ends
the trace. OpenTelemetry's own variables, such as ``OTEL_EXPORTER_OTLP_ENDPOINT``, control where spans go, and
how.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any

from superdl.super_wire.errors import ConfigError
from superdl.super_wire.protocol import installed_version
from superdl.super_wire.request import RequestKind

if TYPE_CHECKING:
    from opentelemetry.trace import Span, SpanContext

    from superdl.coordinator.catalog.dataset import Dataset
    from superdl.coordinator.core import BatchRead, Core, Prefetch, RequestDone, RequestFailed, SetKey

__all__ = ["Tracing"]

_UNREAD_MAX = 4096
"""Maximum number of requests that wait for the read of their first sample, the newest."""

_EPOCHS_MAX = 2**40
_ENDING_S = 2.0


class Tracing:
    """The spans of the engine's requests.

    Args:
        share: of requests, above 0 to 1.

    Raises:
        ConfigError: the extra is not installed.
    """

    def __init__(self, share: float) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.sdk.trace.sampling import TraceIdRatioBased
        except ImportError as error:
            raise ConfigError("trace needs an extra: pip install 'superdl[otel]'") from error
        sampler = TraceIdRatioBased(share)
        names = {"service.name": "super-coordinator", "service.version": installed_version()}
        self._provider = TracerProvider(sampler, Resource.create(names), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("superdl")
        self._requests: dict[int, tuple[Span, SetKey, int]] = {}
        self._unread: defaultdict[SetKey, dict[int, SpanContext]] = defaultdict(dict)
        """Requests whose first sample is still unread, by that sample."""
        self._order: deque[tuple[SetKey, int]] = deque()

    def close(self) -> None:
        """Send pending spans, for at most two seconds."""
        # A collector that does not answer must not delay the coordinator's end.
        ending = threading.Thread(target=self._provider.shutdown, daemon=True)
        ending.start()
        ending.join(_ENDING_S)

    def planned(self, action: Prefetch, executor: str, dataset: Dataset) -> str:
        """Begin a request's span; return the function's context, empty if it is not traced."""
        attributes: dict[str, str | int] = {
            "super.job": action.job,
            "super.source": dataset.listing.source,
            "super.executor": executor,
            "super.samples": int(action.indices.size),
            "super.restore": action.kind is RequestKind.RESTORE,
            "super.save": action.kind is RequestKind.SAVE,
            "super.hedge": action.hedge_of is not None,
        }
        span = self._tracer.start_span("super.request", attributes=attributes)
        if not span.is_recording():
            return ""
        context, first = span.get_span_context(), int(action.indices[0])
        self._requests[action.request_id] = span, action.samples, first
        if action.kind.fills_cache:  # else its reads belong to an earlier request
            self._unread[action.samples][first] = context
            self._order.append((action.samples, first))
            if len(self._order) > _UNREAD_MAX:
                self._forget(*self._order.popleft())
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-01"

    def answered(self, event: RequestDone) -> None:
        """End a request's span with its function's answer."""
        if event.request_id not in self._requests:
            return
        span, _, _ = self._requests.pop(event.request_id)
        now_ns = time.time_ns()
        attributes = {
            "super.fetch_s": event.fetch_us / 1e6,
            "super.decode_s": event.decode_us / 1e6,
            "super.push_s": event.push_us / 1e6,
            "super.cold_start": event.cold_start,
            "super.source_bytes": event.source_bytes,
            "super.record_bytes": int(event.record_bytes.sum()),
            "super.gb_s": event.gb_s,
        }
        begun_ns = now_ns - event.duration_us * 1000
        self._child("super.function", span.get_span_context(), begun_ns, now_ns, attributes)
        span.end(now_ns)

    def failed(self, event: RequestFailed) -> None:
        """End the span of a request that failed."""
        from opentelemetry.trace import StatusCode

        if event.request_id in self._requests:
            span, samples, first = self._requests.pop(event.request_id)
            self._forget(samples, first)
            span.set_status(StatusCode.ERROR, f"{event.kind.value}: {event.message}")
            span.end()

    def _forget(self, samples: SetKey, first: int) -> None:
        waiting = self._unread[samples]
        waiting.pop(first, None)
        if not waiting:
            del self._unread[samples]

    def read(self, event: BatchRead, core: Core) -> None:
        """Record a read batch; if it has a traced request's first sample, end that trace."""
        cursor = core.state.cursor(event.job, event.rank) if event.done else None
        if cursor is None or not 0 <= event.position < cursor.job.plan.batches_per_epoch:
            return  # forged, or from a job that has closed
        key = cursor.job.samples_of(event.epoch)
        waiting = self._unread.get(key)
        if not waiting or not 0 <= event.epoch < _EPOCHS_MAX:
            return
        for index in cursor.job.plan.batch(event.epoch, event.position, event.rank).indices.tolist():
            context = waiting.get(index)
            if context is not None:
                self._forget(key, index)
                now_ns = time.time_ns()
                began_ns = now_ns - (event.read_us + event.wait_us) * 1000
                attributes = {
                    "super.job": event.job,
                    "super.rank": event.rank,
                    "super.epoch": event.epoch,
                    "super.position": event.position,
                    "super.samples": event.samples,
                    "super.hits": event.hits,
                    "super.wait_s": event.wait_us / 1e6,
                }
                self._child("super.read", context, began_ns, now_ns, attributes)

    def _child(self, name: str, of: SpanContext, began_ns: int, ended_ns: int, about: dict[str, Any]) -> None:
        from opentelemetry.trace import NonRecordingSpan, set_span_in_context

        parent = set_span_in_context(NonRecordingSpan(of))
        span = self._tracer.start_span(name, context=parent, attributes=about, start_time=began_ns)
        span.end(ended_ns)
