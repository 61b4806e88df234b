"""Which coordinator addresses are taken, and what is said of the others."""

from __future__ import annotations

import pytest

from superdl.sampler.rpc.connection import checked_address, host_and_port
from superdl.super_wire.errors import ConfigError


@pytest.mark.parametrize(
    ("written", "taken"),
    [
        ("localhost:50051", "localhost:50051"),
        ("127.0.0.1:50051", "127.0.0.1:50051"),
        ("127.8.9.1:1", "127.8.9.1:1"),
        ("[::1]:65535", "[::1]:65535"),
        ("unix:/tmp/c.sock", "unix:/tmp/c.sock"),
        ("unix:///tmp/c.sock", "unix:/tmp/c.sock"),
    ],
)
def test_loopback_and_sockets_are_taken(written, taken):
    assert checked_address(written, "coordinator=") == taken


@pytest.mark.parametrize(
    "written",
    [
        *("", "localhost", "localhost:", "localhost:0", "localhost:65536", "a b:1", "::1:50051"),
        *("http://a:1", "unix:", "unix:relative.sock", "unix:/", "unix://relative", 50051, None),
    ],
)
def test_other_forms_are_refused_with_the_origin(written):
    with pytest.raises(ConfigError, match="SUPER_COORDINATOR") as caught:
        checked_address(written, "SUPER_COORDINATOR")
    assert repr(written) in str(caught.value)


@pytest.mark.parametrize(
    "written",
    [
        *("user:SECRET@host:50051", "http://SECRET@host:1", "host:1?token=SECRET"),
        *("user:SEC@RET:SECRET@host:1", "https://h/?X-Amz-Signature=SECRET&at=a@b", "unix:SECRET@relative"),
    ],
)
def test_credentials_in_an_address_are_not_repeated(written):
    with pytest.raises(ConfigError, match=r"\*\*\*") as caught:
        checked_address(written, "coordinator=")
    assert "SEC" not in str(caught.value)


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("10.0.0.7:50051", "10.0.0.7", 50051),
        ("[2001:db8::1]:1", "2001:db8::1", 1),
        ("coordinator.example:443", "coordinator.example", 443),
        ("unix:/tmp/c.sock", "", 0),
    ],
)
def test_other_hosts_are_taken_too_and_taken_apart(address, host, port):
    assert checked_address(address, "coordinator=") == address
    assert host_and_port(address) == (host, port)
