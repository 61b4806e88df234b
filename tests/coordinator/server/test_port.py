"""A coordinator's port takes any bytes, and serves others on; what is said on its methods is fuzzed in
``tests/hostile/fuzz_rpc.py``.
"""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from superdl.coordinator.server import listening
from superdl.coordinator.server.tls import ServerTls
from superdl.super_wire.coordinator_pb2_grpc import CoordinatorServicer
from tests.coordinator.running import ENOUGH_S
from tests.fixtures.valkey import free_port
from tests.hostile.fuzz_wire import mutate


@pytest.mark.parametrize("encrypted", [False, True])
def test_the_port_takes_any_bytes(serving_loop, certificates, encrypted, monkeypatch):
    port = free_port()
    pair = certificates.server
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
    headers = bytes([0, 0, 5, 1, 4, 0, 0, 0, 1]) + b"\x83\x84\x86\x45\x01"
    hello = bytes([22, 3, 1, 0, 60, 1, 0, 0, 56, 3, 3]) + b"\0" * 54

    @given(good=st.sampled_from([preface + headers, hello]), chance=st.randoms(use_true_random=False))
    def speak(good, chance):
        said = mutate(chance, good)
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
