"""Where a coordinator listens: what is in the way is told, and never removed unless it is a dead socket."""

from __future__ import annotations

import socket

import grpc
import pytest

from superdl.coordinator.server.listening import listen
from superdl.super_wire.coordinator_pb2_grpc import CoordinatorServicer
from superdl.super_wire.errors import ConfigError
from tests.fixtures.valkey import Valkey, free_port


@pytest.fixture
def directory():
    """A short one: a socket's path has at most 107 bytes."""
    server = Valkey()
    yield server.directory
    server.close()


def listening(serving_loop, address, use=None):
    """Listen on ``address``, and call ``use`` (blocking) meanwhile."""

    async def work():
        server, _ = await listen(address, CoordinatorServicer())
        try:
            async with grpc.aio.insecure_channel(address) as channel:
                await channel.channel_ready()
            if use is not None:
                use()
        finally:
            await server.stop(0)

    serving_loop.run(work())


def test_a_socket_is_made_and_removed(serving_loop, directory):
    path = directory / "c.sock"
    listening(serving_loop, f"unix:{path}", path.stat)
    assert not path.exists()


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
    listening(serving_loop, f"unix:{path}")


def test_a_socket_at_which_somebody_answers_is_left_alone(serving_loop, directory):
    path = directory / "c.sock"
    with socket.socket(socket.AF_UNIX) as living:
        living.bind(str(path))
        living.listen()
        with pytest.raises(ConfigError, match="somebody answers there"):
            listening(serving_loop, f"unix:{path}")
        assert path.is_socket()


def test_a_file_that_is_no_socket_is_left_alone(serving_loop, directory):
    path = directory / "precious.txt"
    path.write_text("mine")
    with pytest.raises(ConfigError, match="which is no socket"):
        listening(serving_loop, f"unix:{path}")
    assert path.read_text() == "mine"


def test_a_folder_that_does_not_exist_is_told(serving_loop, directory):
    with pytest.raises(ConfigError, match=f"cannot listen on unix:{directory}/no/c.sock"):
        listening(serving_loop, f"unix:{directory}/no/c.sock")
