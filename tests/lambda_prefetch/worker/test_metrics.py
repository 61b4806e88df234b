"""A worker serves health and metrics. Beyond loopback, metrics need a token and TLS."""

import contextlib
import http.client
import os
import signal
import ssl

import pytest

from superdl.lambda_prefetch.worker.metrics import check_listening, metrics_text
from superdl.lambda_prefetch.worker.slots import Slots, WorkerSettings
from superdl.super_wire.credentials import CoordinatorCredentials
from superdl.super_wire.errors import ConfigError
from tests.fixtures.ports import free_port
from tests.fixtures.stack import Stack
from tests.fixtures.workers import WorkerProcess, until

TOKEN = "a-token-of-more-than-16"


def got(port, path, token="", tls=None):
    """Return status and body, or status 0 if nothing listens."""
    kinds = {"context": tls} if tls else {}
    kind = http.client.HTTPSConnection if tls else http.client.HTTPConnection
    with contextlib.closing(kind("127.0.0.1", port, timeout=20, **kinds)) as connection:
        try:
            connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
        except ConnectionRefusedError:
            return 0, ""
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def test_health_follows_the_stream_and_metrics_need_the_token(certificates):
    metrics, health = free_port(), free_port()
    pair = certificates.server
    environment = {
        "SUPER_TOKEN": TOKEN,
        "SUPER_TLS_CERT": str(pair.cert_file),
        "SUPER_TLS_KEY": str(pair.key_file),
    }
    listening = (f"--metrics-listen=127.0.0.1:{metrics}", f"--health-listen=127.0.0.1:{health}")
    stack = Stack(arguments=("--executor", "workers"), environment={"SUPER_TOKEN": TOKEN})
    worker = WorkerProcess(stack.address, *listening, environment=environment, slots=2)
    try:
        until(lambda: got(health, "/livez")[0] == 200)
        assert got(health, "/healthz")[0] == 503
        assert got(health, "/metrics")[0] == 404
        stack.start()
        until(lambda: got(health, "/healthz") == (200, "SERVING\n"))
        tls = ssl.create_default_context(cafile=certificates.ca_file)
        assert got(metrics, "/metrics", tls=tls)[0] == 401
        status, text = got(metrics, "/metrics", TOKEN, tls)
        assert status == 200
        assert {"super_worker_slots 2", "super_worker_busy_slots 0", "super_worker_connected 1"} < set(
            text.splitlines()
        )
        stack.kill_coordinator()
        until(lambda: got(health, "/healthz")[0] == 503)
        assert got(health, "/livez")[0] == 200
        assert "super_worker_connected 0" in got(metrics, "/metrics", TOKEN, tls)[1]
        worker.send(signal.SIGTERM)
        assert worker.ended() == 0
    finally:
        worker.close()
        stack.process = None
        stack.close()


def test_metrics_are_openmetrics_and_count_requests_by_outcome():
    from prometheus_client.openmetrics.parser import text_string_to_metric_families

    slots = Slots("m:f", 3)
    slots.ended.update(answered=5, crashed=1)
    families = {
        family.name: family
        for family in text_string_to_metric_families(metrics_text(slots, is_connected=True))
    }
    ended = {sample.labels["outcome"]: sample.value for sample in families["super_worker_requests"].samples}
    assert ended == {"answered": 5, "crashed": 1}
    assert families["super_worker_cpu_seconds"].samples[0].value >= os.times().user - 1


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"metrics_listen": "9400"}, "--metrics-listen must be host:port"),
        ({"health_listen": "unix:/run/h.sock"}, "--health-listen must be host:port"),
        ({"metrics_listen": "127.0.0.1:9400", "health_listen": "127.0.0.1:9400"}, "are both"),
        ({"metrics_listen": "0.0.0.0:9400"}, "needs TLS and a token"),
    ],
)
def test_invalid_or_unprotected_addresses_are_refused(given, words, monkeypatch):
    monkeypatch.delenv("SUPER_TLS_CERT", raising=False)
    settings = WorkerSettings(
        "127.0.0.1:50051", "w", credentials=CoordinatorCredentials(token=TOKEN), **given
    )
    with pytest.raises(ConfigError, match=words):
        check_listening(settings)
