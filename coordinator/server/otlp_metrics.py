"""The coordinator's metrics by OpenTelemetry's protocol, for who pushes them rather than have them scraped.

They are those of :mod:`superdl.coordinator.server.metrics`. Figures are taken down on the event loop, and
sent by a thread of OpenTelemetry's. Where they go, and how often, its own variables say:
``OTEL_EXPORTER_OTLP_ENDPOINT``, ``OTEL_METRIC_EXPORT_INTERVAL``.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from superdl.coordinator.server.metrics import CALL_S, METRICS
from superdl.coordinator.server.tracing import otel_resource, send_rest
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.metrics import CallbackOptions, Observation

    from superdl.coordinator.server.metrics import Metric, Metrics

__all__ = ["LOOK_PAUSE_S", "OtlpMetrics"]

LOOK_PAUSE_S = 5.0


class OtlpMetrics:
    """Pushes metrics.

    Args:
        metrics: whose figures they are.

    Raises:
        ConfigError: the extra is not installed.
    """

    def __init__(self, metrics: Metrics) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
            from opentelemetry.sdk.metrics import MeterProvider
            from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        except ImportError as error:
            raise ConfigError("metrics_push needs extras: pip install 'superdl[metrics,otel]'") from error
        self._metrics = metrics
        self._values = metrics.values()
        reader = PeriodicExportingMetricReader(OTLPMetricExporter())
        self._provider = MeterProvider([reader], otel_resource(), shutdown_on_exit=False)
        meter = self._provider.get_meter("superdl")
        make = {"counter": meter.create_observable_counter, "gauge": meter.create_observable_gauge}
        for metric in METRICS:
            if metric.kind in make:
                make[metric.kind](metric.name, [partial(self._observed, metric)], description=metric.help)
            else:
                self._calls = meter.create_histogram(
                    metric.name, description=metric.help, explicit_bucket_boundaries_advisory=CALL_S
                )
        metrics.also_called = self._called

    async def look(self) -> None:
        """Take down all figures, for the next time that they are sent."""
        self._values = self._metrics.values()

    def close(self) -> None:
        """Send the last figures, for two seconds at most."""
        send_rest(self._provider)

    def _called(self, method: str, took_s: float) -> None:
        self._calls.record(took_s, {"method": method})

    def _observed(self, metric: Metric, _: CallbackOptions) -> Iterator[Observation]:
        from opentelemetry.metrics import Observation

        for labels, value in self._values.get(metric.name, ()):
            yield Observation(float(value), dict(zip(metric.labels, labels, strict=True)))
