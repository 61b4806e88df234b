"""A coordinator's port takes any bytes, and serves others on; what is said on its methods is fuzzed in
``tests/hostile/fuzz_rpc.py``.
"""

from __future__ import annotations

import socket
from pathlib import Path

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from superdl.coordinator.server.tls import ServerTls
from superdl.super_wire import coordinator_pb2 as pb
from superdl.super_wire.coordinator_pb2_grpc import CoordinatorStub
from tests.coordinator.running import ENOUGH_S, serving
from tests.hostile.fuzz_wire import mutate


@pytest.mark.parametrize("encrypted", [False, True])
def test_the_port_takes_any_bytes(serving_loop, certificates, encrypted):
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
    headers = bytes([0, 0, 5, 1, 4, 0, 0, 0, 1]) + b"\x83\x84\x86\x45\x01"
    hello = bytes([22, 3, 1, 0, 60, 1, 0, 0, 56, 3, 3]) + b"\0" * 54

    def use(port, _):
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

        speak()
        credentials = grpc.ssl_channel_credentials(Path(certificates.ca_file).read_bytes())
        target = f"localhost:{port}"
        made = grpc.secure_channel(target, credentials) if encrypted else grpc.insecure_channel(target)
        with made as channel:
            assert CoordinatorStub(channel).CloseJob(pb.CloseJobRequest(), timeout=ENOUGH_S).closed

    pair = certificates.server
    serving(serving_loop, use, tls=ServerTls(pair.cert_file, pair.key_file) if encrypted else None)
