"""What a run needs beyond this machine is demanded by name, and lifted loudly; Ray demands a token always."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import psutil
import pytest

from infra.launcher.cluster import Cluster
from infra.launcher.trust import Trust, check_trust, ray_environment, ray_token, trust_of
from superdl.super_wire.errors import ConfigError
from tests.infra.launcher.test_training_run import needs_ray

AWAY = Cluster(("algo-1",), ("algo-2",), "algo-1")
HERE = Cluster(("127.0.0.2",), ("127.0.0.3",), "127.0.0.2")
ALL = {
    "SUPER_TOKEN": "a-token-of-this-test",
    "SUPER_TLS_CERT": "cert.pem",
    "SUPER_TLS_KEY": "key.pem",
    "SUPER_CACHE_PASSWORD": "a password",
    "RAY_USE_TLS": "1",
}


@pytest.mark.parametrize(
    ("missing", "told"),
    [
        ("SUPER_TOKEN", "a token"),
        ("SUPER_TLS_KEY", "a certificate for algo-1"),
        ("SUPER_CACHE_PASSWORD", "a password for the cache"),
        ("RAY_USE_TLS", "TLS between Ray's nodes"),
    ],
)
def test_what_is_missing_beyond_loopback_is_named(missing, told, caplog):
    environment = {name: value for name, value in ALL.items() if name != missing}
    with pytest.raises(ConfigError, match=f"lacks {told}.*--insecure"):
        check_trust(AWAY, environment, insecure=False, own_cache=True, ray=True)
    check_trust(AWAY, environment, insecure=True, own_cache=True, ray=True)
    assert "INSECURE: without " + told in caplog.text


def test_nothing_is_missing_where_all_is_there_or_not_needed(caplog):
    check_trust(AWAY, ALL, insecure=False, own_cache=True, ray=True)
    check_trust(HERE, {}, insecure=False, own_cache=True, ray=True)
    follower = Cluster(("algo-1",), ("algo-2",), "algo-2")
    check_trust(follower, {"SUPER_TOKEN": ALL["SUPER_TOKEN"]}, insecure=False, own_cache=False, ray=False)
    assert caplog.text == ""


def test_a_certificate_given_as_text_is_written_for_this_user_alone(certificates, tmp_path):
    environment = {
        "SUPER_TOKEN": ALL["SUPER_TOKEN"],
        "SUPER_TLS_CERT": Path(certificates.server.cert_file).read_text(),
        "SUPER_TLS_KEY": Path(certificates.server.key_file).read_text().replace("\n", "\\n"),
        "SUPER_COORDINATOR_CA_FILE": certificates.ca_file,
    }
    trust = trust_of(HERE, environment, tmp_path)
    assert trust.server_tls is not None
    assert trust.client_tls is not None
    assert {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()} == {0o600}
    assert ALL["SUPER_TOKEN"] not in repr(trust)


def test_a_certificate_that_no_client_would_ask_for_is_refused(certificates, tmp_path):
    environment = {
        "SUPER_TLS_CERT": certificates.server.cert_file,
        "SUPER_TLS_KEY": certificates.server.key_file,
    }
    with pytest.raises(ConfigError, match="SUPER_TLS_CERT is set and SUPER_COORDINATOR_CA_FILE is not"):
        trust_of(HERE, environment, tmp_path)


def test_a_certificate_that_is_none_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="SUPER_TLS_CERT and SUPER_TLS_KEY cannot be used"):
        trust_of(HERE, {"SUPER_TLS_CERT": "/nonexistent", "SUPER_TLS_KEY": "/nonexistent"}, tmp_path)


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "t"}),
        ({"RAY_AUTH_MODE": "token"}, {"RAY_AUTH_MODE": "token"}),
        ({"RAY_AUTH_MODE": "disabled"}, {"RAY_AUTH_MODE": "disabled"}),
        ({"RAY_AUTH_TOKEN": "own"}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "own"}),
        ({"RAY_AUTH_TOKEN_PATH": "/own"}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": "/own"}),
    ],
)
def test_the_users_own_way_is_kept(own, expected):
    assert ray_environment(own, "t") == expected


def test_every_host_has_the_same_token_and_another_run_another():
    known = Trust(token="a token of this run's hosts")
    assert ray_token(AWAY, known, "salt") == ray_token(AWAY, known, "salt") != ray_token(AWAY, known, "other")
    assert "salt" not in ray_token(AWAY, known, "salt")
    assert ray_token(HERE, Trust(), "salt") == "salt"
    assert ray_token(AWAY, Trust(), "salt") == "", "it would be told to whoever asks"


@pytest.mark.parametrize(("version", "mode"), [("2.51.1", ""), ("2.60.0", "disabled")])
def test_without_a_token_ray_is_refused_on_loopback_too(monkeypatch, caplog, version, mode):
    monkeypatch.setattr(metadata, "version", lambda name: version)
    environment = {"RAY_AUTH_MODE": mode}
    with pytest.raises(
        ConfigError, match=r"lacks a token for Ray, which listens beyond loopback.*--insecure"
    ):
        check_trust(HERE, environment, insecure=False, own_cache=True, ray=True)
    check_trust(HERE, environment, insecure=True, own_cache=True, ray=True)
    assert "INSECURE: without a token for Ray" in caplog.text
    check_trust(HERE, {**environment, "RAY_USE_TLS": "1"}, insecure=False, own_cache=True, ray=True)
    check_trust(HERE, environment, insecure=False, own_cache=True, ray=False)


def test_ray_with_tokens_is_enough_on_loopback(monkeypatch):
    for version in ("2.52.0", "2.60.0", "3.1"):
        monkeypatch.setattr(metadata, "version", lambda name, version=version: version)
        check_trust(HERE, {}, insecure=False, own_cache=True, ray=True)


WAIT = """
import pathlib, sys, time
pathlib.Path(sys.argv[1]).touch()
while not pathlib.Path(sys.argv[2]).exists():
    time.sleep(0.02)
"""

# Ray's own stubs are not needed: a method's name and an empty request are, and 401 comes before both matter.
STRANGER = """
import json, sys, grpc
METHODS = ("/ray.rpc.NodeInfoGcsService/GetAllNodeInfo", "/ray.rpc.NodeManagerService/RequestWorkerLease",
           "/ray.rpc.ObjectManagerService/Pull", "/ray.rpc.RayletDriver/ClusterInfo",
           "/ray.rpc.RayletDriver/Init", "/ray.rpc.CoreWorkerService/PushTask")
answers = []
for port in sys.argv[1:]:
    with grpc.insecure_channel("127.0.0.1:" + port) as channel:
        for method in METHODS:
            try:
                channel.unary_unary(method)(b"", timeout=10)
                answers.append((port, method, "OK"))
            except grpc.RpcError as error:
                answers.append((port, method, error.code().name))
print(json.dumps(answers))
"""


@pytest.mark.slow
@needs_ray
def test_no_stranger_is_served_by_the_ray_of_a_loopback_run(hosts, tmp_path):
    hosts.data_hosts, hosts.training_hosts = (), ("127.0.0.1",)
    script = tmp_path / "wait.py"
    script.write_text(WAIT)
    begun, end = tmp_path / "begun", tmp_path / "end"
    hosts.start(str(script), str(begun), str(end), options=("--executor=ray", "--cache-bytes=128mb"))
    hosts.until(begun.exists, "training")
    ours = {hosts.ports[name] for name in ("control", "coordinator", "cache", "master")}
    beyond = {
        (process.name(), connection.laddr.port)
        for process in hosts.left()
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port not in ours
    }
    assert {"gcs_server", "raylet"} <= {name for name, _ in beyond}
    answers = _answers_to_a_stranger(sorted(str(port) for _, port in beyond))
    assert [answer for answer in answers if answer[2] == "OK"] == []
    refused = {(method, code) for _, method, code in answers if code == "UNAUTHENTICATED"}
    assert {method for method, _ in refused} >= {
        "/ray.rpc.NodeInfoGcsService/GetAllNodeInfo",
        "/ray.rpc.NodeManagerService/RequestWorkerLease",
        "/ray.rpc.ObjectManagerService/Pull",
        "/ray.rpc.RayletDriver/ClusterInfo",
        "/ray.rpc.CoreWorkerService/PushTask",
    }
    end.touch()
    assert set(hosts.codes().values()) == {0}, hosts.all_said()
    hosts.until_nothing_is_left()


def _answers_to_a_stranger(ports):
    told = subprocess.run(
        [sys.executable, "-c", STRANGER, *ports], capture_output=True, text=True, check=True, timeout=60
    )
    return json.loads(told.stdout)
