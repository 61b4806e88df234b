"""Names of hosts become addresses, in bounded time, and one that others cannot reach is refused."""

from __future__ import annotations

import asyncio
import socket

import pytest

from infra.launcher.addresses import address_of, interface_of, with_port
from infra.launcher.cluster import Cluster
from infra.launcher.host import run_host
from infra.launcher.settings import LaunchSettings
from infra.launcher.verdicts import EXIT_NOT_READY, EXIT_WRONG_SETTINGS, RunFailedError


def answer(monkeypatch, *answers):
    """What names resolve to, one answer after the other; the last stays."""
    left = list(answers)

    def resolve(host, port, **_):
        found = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(found, Exception):
            raise found
        family = socket.AF_INET6 if ":" in found else socket.AF_INET
        return [(socket.AF_INET6, 1, 6, "", ("::9", 0)), (family, 1, 6, "", (found, 0))]

    monkeypatch.setattr(socket, "getaddrinfo", lambda host, port, *a, **k: resolve(host, port))


@pytest.mark.parametrize("host", ["127.0.0.9", "::1"])
def test_an_address_is_itself(host):
    assert asyncio.run(address_of(host, 0.0)) == host


def test_ipv4_is_preferred_and_a_name_is_waited_for(monkeypatch):
    answer(monkeypatch, socket.gaierror("not yet"), "10.1.2.3")
    assert asyncio.run(address_of("algo-1", 5.0)) == "10.1.2.3"


def test_a_name_that_nobody_knows_is_told(monkeypatch):
    answer(monkeypatch, socket.gaierror("unknown"))
    with pytest.raises(RunFailedError, match="the host name algo-1 cannot be resolved within 0 s") as failed:
        asyncio.run(address_of("algo-1", 0.0))
    assert failed.value.verdict.code == EXIT_NOT_READY


def test_a_host_that_only_itself_can_reach_is_refused(monkeypatch):
    answer(monkeypatch, "127.0.1.1")
    cluster = Cluster(("node-1",), ("node-2",), "node-1")
    settings = LaunchSettings(insecure=True, coordinator="node-9:50051", start_wait_s=1.0)
    verdict = asyncio.run(run_host(cluster, settings, {}, ["true"]))
    assert verdict.code == EXIT_WRONG_SETTINGS
    assert "node-1 is 127.0.1.1 on node-1 itself" in verdict.reason


def test_the_interface_that_has_an_address():
    loopback = interface_of("127.0.0.1")
    assert loopback in {"lo", "lo0"}
    assert interface_of("127.0.0.7") == loopback
    assert interface_of("192.0.2.1") == ""


def test_a_port_goes_with_any_address():
    assert with_port("algo-1", 5) == "algo-1:5"
    assert with_port("::1", 5) == "[::1]:5"


@pytest.mark.parametrize("host", ["a..b", "a" * 64])
def test_what_is_no_name_of_a_host_is_refused_at_once(host):
    with pytest.raises(RunFailedError, match="is no name of a host") as failed:
        asyncio.run(address_of(host, 3600.0))
    assert failed.value.verdict.code == 2
