"""Traces of a real coordinator, as a collector gets them: from the plan through the function to the read."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from superdl.sampler import SuperSampler
from superdl.super_dataset import Recipe, SuperDataset, SuperLoader
from superdl.super_wire.keys import report_stream
from superdl.super_wire.stream_entries import ReadReport
from tests.fixtures.images import SIDE
from tests.fixtures.ports import free_port
from tests.fixtures.stack import Stack
from tests.integration.delivery import train

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from superdl.sampler.stats import SamplerStats


WAIT_S = 30.0


class Collector:
    """Takes spans by OTLP over HTTP, on loopback."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        taken = self.spans

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

                body = self.rfile.read(int(self.headers["Content-Length"]))
                assert self.path == "/v1/traces"
                for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    names = {one.key: one.value.string_value for one in resource.resource.attributes}
                    assert names["service.name"] == "super-coordinator"
                    taken.extend(span for scope in resource.scope_spans for span in scope.spans)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    running = Collector()
    yield running
    running.close()


def test_one_trace_follows_a_request_from_the_plan_through_the_function_to_the_read(
    collector: Collector, images: Path
) -> None:
    arguments = ("--slots", "2", "--request-samples", "16", "--trace", "1")
    stack = Stack(arguments=arguments, environment={"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url})
    with stack:
        stats = read_all(stack, images)
    by_name: defaultdict[str, dict[bytes, Any]] = defaultdict(dict)
    for span in collector.spans:
        by_name[span.name][span.span_id] = span
    requests = by_name["super.request"]
    assert len(requests) == stats.invocations
    assert len({span.trace_id for span in requests.values()}) == len(requests)
    assert sum(value_of(span, "super.samples") for span in requests.values()) == stats.samples_produced
    for name in ("super.function", "super.read"):
        assert len(by_name[name]) == len(requests), name
        for span in by_name[name].values():
            parent = requests[span.parent_span_id]
            assert span.trace_id == parent.trace_id
            assert span.start_time_unix_nano <= span.end_time_unix_nano
    for span in by_name["super.function"].values():
        parent = requests[span.parent_span_id]
        assert parent.start_time_unix_nano <= span.start_time_unix_nano
        assert span.end_time_unix_nano <= parent.end_time_unix_nano
        assert value_of(span, "super.decode_s") > 0


def read_all(stack: Stack, images: Path) -> SamplerStats:
    """An epoch, all of whose reports have come when its job ends."""
    dataset = SuperDataset(images.as_uri(), Recipe.image(resize=SIDE, crop=SIDE))
    with SuperSampler(dataset, batch_size=4, shuffle=True, seed=1, coordinator=stack.address) as sampler:
        return until_read(sampler, sum(1 for _ in SuperLoader(dataset, sampler)))


def until_read(sampler: SuperSampler, batches: int) -> SamplerStats:
    """Once so many reports have come."""
    deadline_s = time.monotonic() + WAIT_S
    while (stats := sampler.job_stats()).batches_read < batches:
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    return stats


def value_of(span: Any, name: str) -> Any:
    (value,) = (one.value for one in span.attributes if one.key == name)
    return getattr(value, value.WhichOneof("value"))


def test_a_forged_report_harms_no_tracing(collector: Collector, images: Path) -> None:
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
    with Stack(arguments=("--trace", "1"), environment=variables) as stack:
        dataset = SuperDataset(images.as_uri(), Recipe.image(resize=SIDE, crop=SIDE))
        with SuperSampler(dataset, batch_size=4, shuffle=True, seed=1, coordinator=stack.address) as sampler:
            with stack.valkey.client() as cache:
                for epoch, position, rank in ((0, 0, 7), (2**60, 0, 0), (0, 2**40, 0)):
                    forged = ReadReport(rank, epoch, position, 4, 4, *(0,) * 5, done=1)
                    cache.xadd(report_stream(sampler.job), forged.to_fields())
            batches = sum(1 for _ in SuperLoader(dataset, sampler))
            until_read(sampler, batches)


@pytest.mark.slow
def test_a_collector_that_is_away_harms_nothing(images: Path) -> None:
    """The coordinator would be ended by force, and by another exit code, if its end took long."""
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{free_port()}"}
    with Stack(arguments=("--trace", "1"), environment=variables) as stack:
        train(stack, images)


def test_without_a_share_nothing_is_traced(collector: Collector, images: Path) -> None:
    with Stack(environment={"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}) as stack:
        train(stack, images)
    assert not collector.spans
