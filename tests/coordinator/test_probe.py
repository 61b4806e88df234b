"""The probe reports by message and exit code whether a coordinator serves, and only on this machine."""

import os
import socket
import subprocess
import sys

import pytest

from superdl.coordinator import probe


def test_a_coordinator_that_serves_is_healthy_and_one_that_is_gone_is_not(stack):
    command = [sys.executable, "-m", "superdl.coordinator.probe"]
    variables = {**os.environ, "SUPER_LISTEN": stack.address}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"the coordinator at {stack.address} serves\n"
    stack.kill_coordinator()
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert f"the coordinator at {stack.address} does not serve: unavailable: " in done.stdout


def test_one_who_never_answers_is_not_waited_for_long(monkeypatch, capsys):
    monkeypatch.setattr(probe, "_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        assert probe.main([f"127.0.0.1:{mute.getsockname()[1]}"]) == 1
    assert "does not serve: " in capsys.readouterr().out


def asked_with(monkeypatch, environment):
    for name in ("SUPER_LISTEN", "SUPER_HEALTH_LISTEN", "SUPER_TLS_CERT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    asked = []
    monkeypatch.setattr(probe, "probe", lambda address: asked.append(address) or "")
    return probe.main([]), asked


@pytest.mark.parametrize(
    ("environment", "asked"),
    [
        ({}, "127.0.0.1:50051"),
        ({"SUPER_LISTEN": "unix:/run/c.sock"}, "unix:/run/c.sock"),
        ({"SUPER_LISTEN": "0.0.0.0:50051", "SUPER_HEALTH_LISTEN": "127.0.0.1:50052"}, "127.0.0.1:50052"),
        ({"SUPER_LISTEN": "0.0.0.0:50051", "SUPER_HEALTH_LISTEN": "0.0.0.0:50052"}, "127.0.0.1:50052"),
        ({"SUPER_TLS_CERT": "c.pem", "SUPER_HEALTH_LISTEN": "unix:/run/h.sock"}, "unix:/run/h.sock"),
    ],
)
def test_the_address_is_the_health_services_or_the_coordinators(monkeypatch, environment, asked):
    assert asked_with(monkeypatch, environment) == (0, [asked])


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        ({"SUPER_LISTEN": "0.0.0.0:50051"}, "0.0.0.0:50051: it is not a loopback address"),
        ({"SUPER_LISTEN": "127.0.0.1:50051", "SUPER_TLS_CERT": "c.pem"}, "it uses TLS"),
        ({"SUPER_HEALTH_LISTEN": "127.0.0.1"}, "must be host:port or unix:/path"),
    ],
)
def test_what_cannot_be_asked_names_the_remedy_and_is_exit_code_2(monkeypatch, capsys, environment, why):
    assert asked_with(monkeypatch, environment) == (2, [])
    told = capsys.readouterr().err
    assert why in told
    assert "Set SUPER_HEALTH_LISTEN" in told
