"""Arbitrary bytes, silent connections and calls that never finish tie up no resources on any port."""

import contextlib
import resource
import select
import socket
import subprocess
import sys
import time
from pathlib import Path

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from superdl.coordinator.server import grpc_server
from superdl.coordinator.server.grpc_server import listen
from superdl.coordinator.server.tokens import Tokens
from superdl.coordinator.server.trust import ServerTls
from superdl.super_wire import coordinator_pb2 as pb
from superdl.super_wire.coordinator_pb2_grpc import CoordinatorServicer, CoordinatorStub
from superdl.super_wire.errors import ConfigError
from tests.coordinator.running import ENOUGH_S, serving
from tests.fixtures.half_calls import HalfCalls
from tests.fixtures.stack import Stack
from tests.fixtures.valkey import Valkey
from tests.hostile.fuzz_wire import mutate

LIMITS = """
import resource
from superdl.coordinator.server.grpc_server import *
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
raise_limit_of_open_files()
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], connections_that_fit(20_000))
"""


@pytest.mark.parametrize(("soft", "hard", "limits"), [(256, 1024, "1024 512"), (64, 64, "64 32")])
def test_connections_leave_descriptors_for_the_cache_and_s3(soft, hard, limits):
    """In a process of its own, because a hard limit cannot be raised again."""
    command = [sys.executable, "-c", LIMITS.format(soft=soft, hard=hard)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout == f"{limits}\n"


@pytest.fixture
def directory():
    """A directory with a short path: a socket's path has at most 107 bytes."""
    server = Valkey()
    yield server.directory
    server.close()


def listening_on(serving_loop, address):
    """Listen on ``address`` until a client has connected."""

    async def work():
        server = await listen(address, CoordinatorServicer())
        try:
            async with grpc.aio.insecure_channel(address) as channel:
                await channel.channel_ready()
        finally:
            await server.stop(0)

    serving_loop.run(work())


def test_the_socket_of_a_killed_process_is_replaced(serving_loop, directory):
    path = directory / "c.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    listening_on(serving_loop, f"unix:{path}")
    assert not path.exists()


def test_an_address_in_use_and_a_file_in_the_way_are_refused(serving_loop, directory):
    path, precious = directory / "c.sock", directory / "precious.txt"
    precious.write_text("mine")
    with (
        socket.socket(socket.AF_UNIX) as living,
        socket.create_server(("127.0.0.1", 0), reuse_port=True) as taken,  # allows sharing its port
    ):
        living.bind(str(path))
        living.listen()
        port = f"127.0.0.1:{taken.getsockname()[1]}"
        for address, reason in (
            (f"unix:{path}", "another process is listening there"),
            (f"unix:{precious}", "is not a socket"),
            (f"unix:{directory}/no/c.sock", f"cannot listen on unix:{directory}/no/c.sock"),
            (port, f"cannot listen on {port}"),
        ):
            with pytest.raises(ConfigError, match=reason):
                listening_on(serving_loop, address)
        assert path.is_socket()
    assert precious.read_text() == "mine"


def test_a_coordinator_raises_its_limit_of_open_files():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, before[1]))  # a login shell's usual limit
    stack = Stack()
    try:
        stack.start()
        soft, hard = resource.prlimit(stack.process.pid, resource.RLIMIT_NOFILE)
        assert soft == hard > 1024
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        stack.close()


def test_silent_connections_are_limited_and_time_out(serving_loop, monkeypatch):
    most, strangers = 40, 400
    assert grpc_server._CONNECTIONS_MAX * 45 * 1024 < 2**28  # measured: 45 KB each
    monkeypatch.setattr(grpc_server, "_CONNECTIONS_MAX", most)
    monkeypatch.setattr(grpc_server, "_HANDSHAKE_TIMEOUT_MS", 1000)

    def ended(sockets):
        """Count how many of all connections the server has closed so far."""
        readable, _, _ = select.select(sockets, [], [], 0.1)
        for connection in readable:
            try:
                closed = not connection.recv(4096)  # the server sends its settings first
            except OSError:
                closed = True
            if closed:
                sockets.remove(connection)
        return strangers - len(sockets)

    def use(port, _):
        with contextlib.ExitStack() as stack:
            silent = [
                stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(strangers)
            ]
            until_s = time.monotonic() + ENOUGH_S
            while ended(silent) < strangers - most:
                assert time.monotonic() < until_s
            while ended(silent) < strangers:  # the others end when their handshakes time out
                assert time.monotonic() < until_s
            with (
                grpc.insecure_channel(f"127.0.0.1:{port}") as channel,
                pytest.raises(grpc.RpcError) as caught,
            ):
                channel.unary_unary("/super.v1.Coordinator/None")(b"", timeout=10, wait_for_ready=True)
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED

    serving(serving_loop, use)


def test_idle_connections_are_closed_without_an_error_for_their_clients(serving_loop, monkeypatch):
    monkeypatch.setattr(grpc_server, "_IDLE_MS", 200)

    def use(port, probed):
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            for _ in range(2):
                with pytest.raises(grpc.RpcError) as caught:
                    channel.unary_unary("/super.v1.Coordinator/None")(b"", timeout=10)
                assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
                for idle_at in (port, probed):
                    with HalfCalls(idle_at) as idle:
                        idle.until_closed()

    serving(serving_loop, use)


@pytest.mark.parametrize("encrypted", [False, True])
def test_any_bytes_end_a_connection_and_harm_no_other(serving_loop, certificates, encrypted):
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
                except OSError:  # the server has hung up
                    return

        speak()
        credentials = grpc.ssl_channel_credentials(Path(certificates.ca_file).read_bytes())
        target = f"localhost:{port}"
        connecting = grpc.secure_channel(target, credentials) if encrypted else grpc.insecure_channel(target)
        with connecting as channel:
            assert CoordinatorStub(channel).CloseJob(pb.CloseJobRequest(), timeout=ENOUGH_S).closed

    pair = certificates.server
    serving(serving_loop, use, tls=ServerTls(pair.cert_file, pair.key_file) if encrypted else None)


TOKEN = "0123456789abcdef"
RIGHT = {"authorization": f"Bearer {TOKEN}"}
CLOSE_JOB = "/super.v1.Coordinator/CloseJob"
CALLS = 8


@pytest.fixture(autouse=True)
def few_calls(monkeypatch):
    """Allow fewer concurrent calls than are started."""
    monkeypatch.setattr(grpc_server, "_CALLS_MAX", CALLS // 2)
    monkeypatch.setattr(grpc_server, "_HEALTH_CALLS_MAX", CALLS // 2)


def answer(port):
    """Return the answer that an honest client gets."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        metadata = tuple(RIGHT.items())
        return CoordinatorStub(channel).CloseJob(pb.CloseJobRequest(), metadata=metadata, timeout=10).closed


@pytest.mark.parametrize(
    ("path", "is_probe"),
    [
        (CLOSE_JOB, False),
        ("/no.such/Method", False),
        ("/grpc.health.v1.Health/Watch", False),
        ("/grpc.health.v1.Health/Check", True),
    ],
)
def test_calls_of_strangers_end_without_their_messages(serving_loop, path, is_probe):
    def use(*ports):
        for port in ports[: 1 + is_probe]:
            with HalfCalls(port) as strangers:
                for _ in range(3):
                    strangers.begin(path, CALLS // 2)
                    strangers.until_ended(CALLS // 2)
                assert is_probe or answer(port)

    serving(serving_loop, use, tokens=Tokens(TOKEN))


@pytest.mark.parametrize("tokens", [None, Tokens(TOKEN)])
def test_a_call_ends_if_its_message_does_not_arrive(serving_loop, monkeypatch, tokens):
    monkeypatch.setattr(grpc_server, "_MESSAGE_TIMEOUT_S", 0.3)

    def use(port, _):
        with HalfCalls(port) as broken:
            broken.begin(CLOSE_JOB, CALLS, RIGHT)
            broken.until_ended(CALLS)
            assert answer(port)

    serving(serving_loop, use, tokens=tokens)


def test_a_call_without_a_message_is_refused(serving_loop):
    def use(port, _):
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            said_nothing = channel.stream_unary(CLOSE_JOB)
            with pytest.raises(grpc.RpcError, match="the call ended without its message") as caught:
                said_nothing(iter(()), timeout=10)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert answer(port)

    serving(serving_loop, use)
