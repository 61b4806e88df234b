"""Anything is said to a coordinator, on every method and below: it answers, and serves others on."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import given, settings
from hypothesis import strategies as st

from superdl.coordinator.catalog import list_source
from superdl.coordinator.server import listening
from superdl.super_wire import coordinator_pb2 as pb
from superdl.super_wire.errors import SourceError
from superdl.super_wire.keys import report_stream
from superdl.super_wire.read_report import ReadReport
from tests.coordinator.running import ENOUGH_S, RECIPE, registration
from tests.fixtures.valkey import free_port
from tests.super_wire.mutating import mutated

SERVICE = pb.DESCRIPTOR.services_by_name["Coordinator"]
METHODS = {method.name: method.input_type for method in SERVICE.methods}
# A server that has said one of these has a bug, or is gone.
NEVER = {grpc.StatusCode.UNKNOWN, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}
UNTOUCHED = "untouched"
MESSAGES: dict[str, Any] = {
    "NextBatches": pb.NextBatchesRequest(job="job", epoch=1, position=1, count=3, yielded=1, with_keys=True),
    "CloseJob": pb.CloseJobRequest(job="another", rank=1),
    "GetJobStats": pb.GetJobStatsRequest(jobs=["job"]),
    "GetBatchStatus": pb.GetBatchStatusRequest(batch_ids=[b"x" * 16]),
}
NUMBERS = {
    FieldDescriptor.TYPE_UINT32: st.integers(0, 9) | st.integers(0, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: st.integers(0, 9) | st.integers(0, 2**64 - 1),
    FieldDescriptor.TYPE_SINT64: st.integers(-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_DOUBLE: st.floats(max_value=0.01) | st.just(float("nan")),  # how long a poll waits
    FieldDescriptor.TYPE_BOOL: st.booleans(),
}


def lister(source, *arguments):
    """Lists what lies in the test's own directory: texts of chance shall not lead to all of the machine."""
    if not source.startswith("file:///tmp/"):
        msg = f"{source[:80]} is not listed here"
        raise SourceError(msg)
    return list_source(source, *arguments)


def messages(method: str, dataset: bytes, source: str) -> st.SearchStrategy[bytes]:
    """Requests: fields of chance, those of a good one among them, and bytes that nearly are a request."""
    texts = st.sampled_from(
        ["job", "another", "", RECIPE.json, source, "run", "\0", "\U0001f600" * 700]
    ) | st.text(max_size=9)
    values = NUMBERS | {
        FieldDescriptor.TYPE_STRING: texts,
        FieldDescriptor.TYPE_BYTES: st.just(dataset) | st.binary(max_size=20),
    }
    kind = METHODS[method]
    fields = {
        field.name: st.lists(values[field.type], max_size=4) if field.is_repeated else values[field.type]
        for field in kind.fields
    }
    good = {
        "RegisterDataset": registration(source=source),
        "GetDataset": pb.GetDatasetRequest(dataset_id=dataset),
        "OpenJob": pb.OpenJobRequest(
            dataset_id=dataset, job="job", batch_size=2, replicas=2, rank=1, seed=-3, shuffle=True, epoch=1
        ),
    } | MESSAGES
    some = st.fixed_dictionaries({}, optional=fields)
    made = some.map(lambda given: type(good[method])(**given).SerializeToString())
    edited = some.map(lambda given: _merged(good[method], given).SerializeToString())
    return made | edited | mutated(good[method].SerializeToString()) | st.binary(max_size=64)


def _merged(good: Any, changes: dict[str, Any]) -> Any:
    changed = type(good)()
    changed.CopyFrom(good)
    changed.MergeFrom(type(good)(**changes))
    return changed


def said(ask: Any, request: bytes) -> tuple[grpc.StatusCode, str]:
    """The status of an answer, and its words."""
    try:
        ask(request, timeout=ENOUGH_S)
    except grpc.RpcError as error:
        return error.code(), error.details()
    return grpc.StatusCode.OK, "answered"


def test_every_method_answers_whatever_it_is_asked(run, source, valkey):
    async def work(coordinator):
        dataset = await coordinator.register(source)
        for job in ("job", UNTOUCHED):
            await coordinator.open(dataset, job)
        await asyncio.to_thread(fuzz, coordinator, dataset.dataset_id)
        # Nobody else was harmed.
        for start in (0, 1):
            page = await coordinator.page(UNTOUCHED, position=start)
            assert [len(batch.sample_ids) // 16 for batch in page.batches] == [4, 4, 2][start:]
        assert not coordinator.engine.failed.done()
        assert len(list(coordinator.datasets)) <= 256
        await coordinator.until(lambda: coordinator.engine.core.job(UNTOUCHED).counters.batches_read > 0)

    def fuzz(coordinator, dataset):
        with grpc.insecure_channel(coordinator.address) as channel, valkey.client() as cache:

            @settings(max_examples=4 * settings().max_examples)  # there are seven methods
            @given(data=st.data())
            def call(data):
                method = data.draw(st.sampled_from(sorted(METHODS)))
                request = data.draw(messages(method, dataset, f"file://{source}"))
                ask = channel.unary_unary(f"/{SERVICE.full_name}/{method}")
                code, details = said(ask, request)
                assert code not in NEVER, (code, details)
                assert details

            @given(data=st.data())
            def report(data):
                number = st.integers(0, 12) | st.integers(0, 2**63 - 1)
                offsets = st.lists(st.integers(0, 12) | st.integers(0, 2**32 - 1), max_size=9).map(tuple)
                made = ReadReport(
                    *[data.draw(number) for _ in range(11)], data.draw(offsets), data.draw(offsets)
                )
                entry = made.to_fields()
                if data.draw(st.booleans()):
                    entry = {name: data.draw(mutated(value)) for name, value in entry.items()}
                cache.xadd(report_stream("job"), entry)

            call()
            report()
            good = ReadReport(0, 0, 0, 4, 4, 1, 1, 1, 1, 1, 1)
            cache.xadd(report_stream(UNTOUCHED), good.to_fields())

    run(work, lister=lister)


@pytest.mark.parametrize("encrypted", [False, True])
def test_the_port_takes_any_bytes(serving_loop, certificates, encrypted, monkeypatch):
    from superdl.coordinator.server.tls import ServerTls
    from superdl.super_wire.coordinator_pb2_grpc import CoordinatorServicer

    port = free_port()
    pair = certificates.server
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
    headers = bytes([0, 0, 5, 1, 4, 0, 0, 0, 1]) + b"\x83\x84\x86\x45\x01"
    hello = bytes([22, 3, 1, 0, 60, 1, 0, 0, 56, 3, 3]) + b"\0" * 54

    @given(said=mutated(preface + headers) | mutated(hello) | st.binary(max_size=100))
    def speak(said):
        with socket.create_connection(("127.0.0.1", port), timeout=ENOUGH_S) as connection:
            try:
                connection.sendall(said)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(4096):
                    pass
            except TimeoutError:
                pytest.fail(f"it keeps a connection for ever that said {said!r}")
            except OSError:  # it has hung up
                return

    def use():
        speak()
        root = Path(certificates.ca_file).read_bytes()
        credentials = grpc.ssl_channel_credentials(root)
        target = f"localhost:{port}"
        made = grpc.secure_channel(target, credentials) if encrypted else grpc.insecure_channel(target)
        with made as channel, pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary("/super.v1.Coordinator/CloseJob")(b"", timeout=ENOUGH_S)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED

    async def work():
        tls = ServerTls(pair.cert_file, pair.key_file) if encrypted else None
        server, _ = await listening.listen(f"127.0.0.1:{port}", CoordinatorServicer(), tls=tls)
        try:
            await asyncio.to_thread(use)
        finally:
            await server.stop(0)

    serving_loop.run(work())
