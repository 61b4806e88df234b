"""A real Prometheus scrapes a real coordinator, and its alerts fire while functions are throttled."""

import json
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request

import pytest

from tests.fixtures.ports import free_port
from tests.fixtures.stack import Stack
from tests.infra.test_monitoring import expressions
from tests.integration.delivery import train
from tools.monitoring import ALERTS

ENOUGH_S = 60.0
CONFIGURATION = """
global: {{scrape_interval: 250ms, evaluation_interval: 250ms}}
rule_files: [alerts.yaml]
scrape_configs:
  - {{job_name: super, static_configs: [{{targets: ["{metrics}"]}}]}}
"""


class Prometheus:
    """A Prometheus on loopback, whose alert rules are shortened from minutes to seconds."""

    def __init__(self, directory):
        self._address, self.metrics = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        # Shorten ranges of minutes to 6 s, and drop the durations that alerts must last.
        rules = re.sub(r"\[\d+m\]", "[6s]", ALERTS.read_text(encoding="utf-8"))
        (directory / "alerts.yaml").write_text(re.sub(r"for: \d+m", "for: 0s", rules))
        (directory / "prometheus.yml").write_text(CONFIGURATION.format(metrics=self.metrics))
        command = [shutil.which("prometheus") or "", f"--config.file={directory}/prometheus.yml"]
        command += [f"--storage.tsdb.path={directory}/data", f"--web.listen-address={self._address}"]
        self.log = directory / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def ask(self, expr):
        """The samples of an expression now; none until Prometheus answers."""
        query = urllib.parse.urlencode({"query": expr})
        try:
            with urllib.request.urlopen(f"http://{self._address}/api/v1/query?{query}", timeout=10) as answer:
                told = json.load(answer)
        except urllib.error.HTTPError as error:
            pytest.fail(f"{expr}: {error.read().decode()}")
        except OSError:
            assert self.process.poll() is None, self.log.read_text()
            return []
        return list(told["data"]["result"])

    def until(self, expr):
        """Query until there is a result, up to a bound."""
        end = time.monotonic() + ENOUGH_S
        while not (found := self.ask(expr)):
            assert time.monotonic() < end, f"{expr} is still empty:\n{self.log.read_text()[-2000:]}"
            time.sleep(0.1)  # Prometheus has no blocking query
        return found


@pytest.fixture
def prometheus(tmp_path):
    if shutil.which("prometheus") is None:
        pytest.skip("there is no Prometheus: apt-get install prometheus")
    running = Prometheus(tmp_path)
    try:
        yield running
    finally:
        running.process.terminate()
        running.process.wait(20)


@pytest.mark.slow
def test_throttled_functions_are_seen_by_prometheus_and_fire_its_rules(
    prometheus, lambda_service, photos, valkey, images
):
    fired = 'count_over_time(ALERTS{alertname="%s",alertstate="firing"}[5m])'
    lambda_service.concurrency = 2
    words = "--executor lambda --lambda-warm 2 --request-samples 4 --lookahead-batches 4 --log-format json"
    with Stack(arguments=(*words.split(), "--metrics-listen", prometheus.metrics), cache=valkey.url) as stack:
        prometheus.until("super_build_info")
        disturb = {3: lambda: lambda_service.throttle_next(12)}
        train(stack, images, "s3://photos/train", disturb=disturb)
        (throttled,) = prometheus.until(fired % "SuperThrottled")
        assert throttled["metric"]["executor"] == "lambda"
        waited = prometheus.until(fired % "SuperReadersWait")
        assert {one["metric"]["cause"] for one in waited} & {"limits", "storage", "starting"}
        for expr in expressions():
            prometheus.ask(expr.replace("$__rate_interval", "1m"))
        for calm in ("SuperThrash", "SuperSpendingStopped", "SuperSamplesFail"):
            assert not prometheus.ask(fired % calm)
        (read,) = prometheus.ask("sum(max_over_time(super_samples_read_total[5m]))")
        told = [json.loads(line) for line in stack.log.read_text().splitlines()]
        assert len(told) < 20  # over some 25 s
        assert any(one.get("executor") == "lambda" and "lambda throttled: " in one["message"] for one in told)
        assert [one["job"] for one in told if "opened" in one["message"]]
        assert int(read["value"][1]) >= 100  # the rest came after the last scrape of an open job
    prometheus.until('ALERTS{alertname="SuperDown",alertstate="firing"}')
