"""What a run needs beyond this machine is demanded by name, and lifted loudly; Ray demands a token always."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata

import psutil
import pytest

from infra.launcher.settings import Cluster, parse
from infra.launcher.trust import Trust, check_trust, ray_environment, ray_token, trust_of
from superdl.super_wire.errors import ConfigError
from tests.infra.launcher.test_training_run import needs_ray

AWAY = Cluster(("algo-1",), ("algo-2",), "algo-1")
FOLLOWER = Cluster(("algo-1",), ("algo-2",), "algo-2")
HERE = Cluster(("127.0.0.2",), ("::1",), "127.0.0.2")
WITH_RAY = parse(["train.py"])
BARE = parse(["--coordinator=algo-1:1", "train.py"])
TOKEN = {"SUPER_TOKEN": "a-token-of-this-test"}
ALL = {
    **TOKEN,
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
        check_trust(AWAY, WITH_RAY, environment, insecure=False)
    check_trust(AWAY, WITH_RAY, environment, insecure=True)
    assert "INSECURE: without " + told in caplog.text


def test_nothing_is_missing_where_all_is_there_or_not_needed(caplog, monkeypatch):
    monkeypatch.setattr(metadata, "version", lambda name: "2.52.0")
    check_trust(AWAY, WITH_RAY, ALL, insecure=False)
    check_trust(HERE, WITH_RAY, {}, insecure=False)
    check_trust(FOLLOWER, BARE, TOKEN, insecure=False)
    assert caplog.text == ""


@pytest.mark.parametrize(("version", "mode"), [("2.51.1", ""), ("2.60.0", "disabled")])
def test_without_a_token_ray_is_refused_on_loopback_too(monkeypatch, caplog, version, mode):
    monkeypatch.setattr(metadata, "version", lambda name: version)
    environment = {"RAY_AUTH_MODE": mode}
    with pytest.raises(ConfigError, match=r"lacks a token for Ray, which listens beyond loopback"):
        check_trust(HERE, WITH_RAY, environment, insecure=False)
    check_trust(HERE, WITH_RAY, environment, insecure=True)
    assert "INSECURE: without a token for Ray" in caplog.text
    check_trust(HERE, WITH_RAY, {**environment, "RAY_USE_TLS": "1"}, insecure=False)
    check_trust(HERE, BARE, environment, insecure=False)


def test_a_certificate_that_cannot_be_used_is_refused(certificates):
    pair = certificates.server
    environment = {"SUPER_TLS_CERT": pair.cert_file, "SUPER_TLS_KEY": pair.key_file, **TOKEN}
    with pytest.raises(ConfigError, match="SUPER_TLS_CERT is set and SUPER_COORDINATOR_CA_FILE is not"):
        trust_of(HERE, environment)
    environment["SUPER_COORDINATOR_CA_FILE"] = certificates.ca_file
    trust = trust_of(HERE, environment)
    assert None not in {trust.server_tls, trust.client_tls}
    assert TOKEN["SUPER_TOKEN"] not in repr(trust)
    with pytest.raises(ConfigError, match="SUPER_TLS_CERT and SUPER_TLS_KEY cannot be used"):
        trust_of(HERE, {**environment, "SUPER_TLS_KEY": "/nonexistent"})


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "t"}),
        ({"RAY_AUTH_MODE": "disabled"}, {"RAY_AUTH_MODE": "disabled"}),
        ({"RAY_AUTH_TOKEN": "own"}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "own"}),
        ({"RAY_AUTH_TOKEN_PATH": "/own"}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": "/own"}),
    ],
)
def test_the_users_own_way_is_kept(own, expected):
    assert ray_environment(own, "t") == expected


def test_hosts_without_a_secret_agree_whatever_files_ray_left_on_them():
    assert ray_environment({}, "") == {"RAY_AUTH_MODE": "disabled"}
    assert ray_environment({"RAY_AUTH_TOKEN": "own"}, "") == {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": "own",
    }


def test_every_host_has_the_same_token_and_another_run_another():
    known = Trust(token="a token of this run's hosts")
    assert ray_token(AWAY, known, "salt") == ray_token(FOLLOWER, known, "salt")
    assert ray_token(AWAY, known, "salt") != ray_token(AWAY, known, "other")
    assert "salt" not in ray_token(AWAY, known, "salt")
    assert ray_token(HERE, Trust(), "salt") == "salt"
    assert ray_token(AWAY, Trust(), "salt") == "", "it would be told to whoever asks"


WAIT = """
import pathlib, sys, time
pathlib.Path(sys.argv[1]).touch()
while not pathlib.Path(sys.argv[2]).exists():
    time.sleep(0.02)
"""
METHODS = (
    *("/ray.rpc.NodeInfoGcsService/GetAllNodeInfo", "/ray.rpc.NodeManagerService/RequestWorkerLease"),
    *("/ray.rpc.ObjectManagerService/Pull", "/ray.rpc.RayletDriver/ClusterInfo"),
    "/ray.rpc.CoreWorkerService/PushTask",
)
# Ray's own stubs are not needed: a method's name and an empty request are, and 401 comes before both matter.
STRANGER = """
import json, sys, grpc
answers = []
for port in sys.argv[2:]:
    with grpc.insecure_channel("127.0.0.1:" + port) as channel:
        for method in sys.argv[1].split(","):
            try:
                channel.unary_unary(method)(b"", timeout=10)
                answers.append((method, "OK"))
            except grpc.RpcError as error:
                answers.append((method, error.code().name))
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
        (process.info["name"], connection.laddr.port)
        for process in hosts.left()
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port not in ours
    }
    assert {"gcs_server", "raylet"} <= {name for name, _ in beyond}
    words = [sys.executable, "-c", STRANGER, ",".join(METHODS), *sorted(str(port) for _, port in beyond)]
    told = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    answers = {tuple(answer) for answer in json.loads(told.stdout)}
    assert not [answer for answer in answers if answer[1] == "OK"]
    assert {method for method, code in answers if code == "UNAUTHENTICATED"} == set(METHODS)
    end.touch()
    assert set(hosts.codes().values()) == {0}, hosts.all_said()
    hosts.until_nothing_is_left()
