"""Which hosts are this machine."""

from __future__ import annotations

import pytest

from superdl.super_wire.encryption import is_loopback


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("localhost", True),
        ("LocalHost", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.7", False),
        ("fe80::1", False),
        ("localhost.example.org", False),
        ("example.org", False),
        ("", False),
    ],
)
def test_loopback_is_this_machine_alone(host, expected):
    assert is_loopback(host) is expected
