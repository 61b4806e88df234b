"""Where a coordinator listens: what is in the way is told, and connections never take the last open file."""

from __future__ import annotations

import contextlib
import resource
import select
import socket
import subprocess
import sys
import time

import grpc
import pytest

from superdl.coordinator.server import listening
from superdl.coordinator.server.listening import listen
from superdl.super_wire.coordinator_pb2_grpc import CoordinatorServicer
from superdl.super_wire.errors import ConfigError
from tests.coordinator.running import serving
from tests.fixtures.half_calls import HalfCalls
from tests.fixtures.ports import free_port
from tests.fixtures.stack import Stack
from tests.fixtures.valkey import Valkey

ENOUGH_S = 20.0
ASK = """
import resource
from superdl.coordinator.server.listening import *
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
raise_limit_of_open_files()
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], connections_that_fit(20_000))
"""


@pytest.mark.parametrize(
    ("soft", "hard", "told"), [(256, 4096, "4096 3072"), (256, 1024, "1024 512"), (64, 64, "64 32")]
)
def test_the_limit_is_raised_and_leaves_enough_for_other_things(soft, hard, told):
    """In a process of its own, since a hard limit cannot be raised again."""
    command = [sys.executable, "-c", ASK.format(soft=soft, hard=hard)]
    assert (
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout == f"{told}\n"
    )


@pytest.fixture
def directory():
    """A short one: a socket's path has at most 107 bytes."""
    server = Valkey()
    yield server.directory
    server.close()


def listening_on(serving_loop, address):
    """Listen on ``address`` until a client has connected."""

    async def work():
        server, _ = await listen(address, CoordinatorServicer())
        try:
            async with grpc.aio.insecure_channel(address) as channel:
                await channel.channel_ready()
        finally:
            await server.stop(0)

    serving_loop.run(work())


def test_a_port_is_listened_on_alone(serving_loop):
    address = f"127.0.0.1:{free_port()}"

    async def work():
        server, _ = await listen(address, CoordinatorServicer())
        try:
            with pytest.raises(ConfigError, match=f"cannot listen on {address}"):
                await listen(address, CoordinatorServicer())
        finally:
            await server.stop(0)

    serving_loop.run(work())


def test_the_socket_of_a_killed_predecessor_is_replaced(serving_loop, directory):
    path = directory / "c.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    listening_on(serving_loop, f"unix:{path}")
    assert not path.exists()


def test_what_is_in_the_way_and_lives_is_left_alone(serving_loop, directory):
    path, precious = directory / "c.sock", directory / "precious.txt"
    precious.write_text("mine")
    with socket.socket(socket.AF_UNIX) as living:
        living.bind(str(path))
        living.listen()
        for there, reason in (
            (path, "somebody answers there"),
            (precious, "which is no socket"),
            (directory / "no" / "c.sock", f"cannot listen on unix:{directory}/no/c.sock"),
        ):
            with pytest.raises(ConfigError, match=reason):
                listening_on(serving_loop, f"unix:{there}")
        assert path.is_socket()
    assert precious.read_text() == "mine"


@pytest.fixture
def usual_limit():
    """What a login shell has."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, before[1]))
    yield 1024
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_coordinator_raises_its_limit(usual_limit):
    stack = Stack()
    stack.start()
    try:
        soft, hard = resource.prlimit(stack.process.pid, resource.RLIMIT_NOFILE)
        assert soft == hard > usual_limit
    finally:
        stack.close()


def test_silent_connections_are_few_and_end_so_that_others_come_in(serving_loop, monkeypatch):
    most, strangers = 40, 400
    assert listening._CONNECTIONS_MAX * 45 * 1024 < 2**28  # each was measured to cost 45 KB
    monkeypatch.setattr(listening, "_CONNECTIONS_MAX", most)
    monkeypatch.setattr(listening, "_HANDSHAKE_TIMEOUT_MS", 1000)

    def ended(sockets):
        """How many the server has hung up so far, of all."""
        readable, _, _ = select.select(sockets, [], [], 0.1)
        for one in readable:
            try:
                closed = not one.recv(4096)  # it says its settings first
            except OSError:
                closed = True
            if closed:
                sockets.remove(one)
        return strangers - len(sockets)

    def use(port, _):
        with contextlib.ExitStack() as stack:
            silent = [
                stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(strangers)
            ]
            until_s = time.monotonic() + ENOUGH_S
            while ended(silent) < strangers - most:
                assert time.monotonic() < until_s
            while ended(silent) < strangers:  # the others end when their handshakes do not come
                assert time.monotonic() < until_s
            with (
                grpc.insecure_channel(f"127.0.0.1:{port}") as channel,
                pytest.raises(grpc.RpcError) as caught,
            ):
                channel.unary_unary("/super.v1.Coordinator/None")(b"", timeout=10, wait_for_ready=True)
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED

    serving(serving_loop, use)


def test_idle_connections_are_ended_and_a_client_connects_anew_unawares(serving_loop, monkeypatch):
    monkeypatch.setattr(listening, "_IDLE_MS", 200)

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
