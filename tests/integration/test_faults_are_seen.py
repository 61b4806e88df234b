"""A fault appears in metrics and ``superdl top`` soon after its first log line, and takes few lines."""

import json
import shutil
import urllib.request
from contextlib import contextmanager

import pytest

from superdl.main import main
from superdl.super_dataset import Recipe
from superdl.super_wire.keys import REPORT_PREFIX
from tests.fixtures.faulty_function import FUNCTION, Script
from tests.fixtures.lambda_answers import Answer
from tests.fixtures.ports import free_port
from tests.fixtures.stack import Stack
from tests.fixtures.workers import until
from tests.integration.delivery import RECIPE, reading

ENOUGH_S, SOON_S = 60.0, 2.0
LINES_MAX = 20
BROKEN = Answer.error(500, "ServiceException", "an internal error")


class Watched:
    """A stack and its outputs: log, metrics and ``superdl top``."""

    def __init__(self, capsys, *arguments, cache="", **variables):
        self.metrics = f"127.0.0.1:{free_port()}"
        arguments += ("--metrics-listen", self.metrics, "--log-format", "json")
        self.stack = Stack(arguments=arguments, environment=variables, cache=cache)
        self._capsys = capsys

    def log(self):
        return self.stack.log.read_text()

    def metric(self, name, label=""):
        with urllib.request.urlopen(f"http://{self.metrics}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        (line,) = (line for line in lines if line.startswith((f"{name}{{", f"{name} ")) and label in line)
        return float(line.rpartition(" ")[2])

    def shown(self, command, *arguments):
        assert main([command, "--coordinator", self.stack.address, "--json", *arguments]) == 0
        return json.loads(self._capsys.readouterr().out)

    def cache_trouble(self):
        """Cache trouble as in ``superdl top`` and metrics."""
        told = str(self.shown("top", "--once")["cache"]["cache_trouble"])
        return told if self.metric("super_cache_trouble") == float(bool(told)) else "they differ"

    def warns(self, words, part):
        """Whether metrics and ``superdl top`` report what the log reports."""
        view = self.shown("top", "--once")
        return any(words in one["text"] for one in view["warned"]) and (
            self.metric("super_warnings_total", f'part="{part}"') > 0
        )

    @contextmanager
    def training(self, source, recipe=RECIPE, before=lambda: None):
        """A stack and a sampler with no reader. Asserts afterwards that the log is short."""
        with self.stack as stack:
            before()
            with reading(source, stack.address, recipe, batch_size=16) as (sampler, _):
                yield sampler
            self.is_short()

    def is_short(self):
        lines = self.log().splitlines()
        assert len(lines) < LINES_MAX, "\n".join(lines)

    def tells(self, words, part, also=lambda: True):
        """Wait until the log has the words, and soon after it the metrics and ``superdl top``."""
        until(lambda: words in self.log(), ENOUGH_S)
        until(lambda: self.warns(words, part) and also(), SOON_S)


# What the function does in each call, its first log line, the part of the coordinator that logs it, and the
# outcome that is counted.
FAULTS_OF_FUNCTIONS = {
    "raise": ("the function raised RuntimeError: as the script says", "server", "raised"),
    "die": ("killed by SIGKILL", "server", "crashed"),
    "hang": ("the function did not respond in time", "server", "timed_out"),
    "answer for another": ("but answered 'another'", "server", "raised"),
    "spoil": ("corrupt when read back", "server", "answered"),
}
FAULTS_ON_LAMBDA = {
    "throttles": (lambda service: service.throttle_next(1000), "is throttled", "throttled"),
    "fails": (lambda service: service.answer_next(*[BROKEN] * 1000), "ServiceException", "unavailable"),
    "breaks off": (lambda service: service.hang_up_next(1000), "Connection was closed", "unavailable"),
    "crashes": (lambda service: service.crash_next(1000), "crashed (Runtime.ExitError", "crashed"),
}


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "does",
    ["raise", *(pytest.param(does, marks=pytest.mark.slow) for does in list(FAULTS_OF_FUNCTIONS)[1:])],
)
def test_a_fault_of_functions_shows_in_metrics_stats_and_top_and_in_few_lines(tmp_path, images, capsys, does):
    words, part, outcome = FAULTS_OF_FUNCTIONS[does]
    script = Script(tmp_path)
    for number in range(1, 200):
        script.at_call(number, does)
    # Without a reader, an ordinary lease would stop all requests after 15 s.
    few = ("--slots", "2", "--request-timeout-s", "0.25", "--request-samples", "4", "--lease-s", "300")
    watched = Watched(capsys, *few, "--function", FUNCTION, **script.environment)

    def counted():
        ended = {one["outcome"]: one["requests"] for one in watched.shown("stats")["executors"][0]["ended"]}
        metric = watched.metric("super_requests_total", f'outcome="{outcome}"')
        return metric > 0 and ended.get(outcome, 0) > 0

    with watched.training(images.as_uri()) as sampler:
        watched.tells(words, part, counted)
        until(lambda: script.calls() >= 20, ENOUGH_S)
        assert sampler.job_stats().retries > 0 or outcome == "answered"


@pytest.mark.timeout(180)
@pytest.mark.slow
@pytest.mark.parametrize("it", list(FAULTS_ON_LAMBDA))
def test_what_lambda_does_shows_in_metrics_and_top_and_in_few_lines(lambda_service, photos, capsys, it):
    befall, words, outcome = FAULTS_ON_LAMBDA[it]
    few = ("--executor", "lambda", "--lambda-warm", "1", "--lambda-concurrency", "2")
    watched = Watched(capsys, *few, "--request-samples", "4")

    with watched.training(photos, before=lambda: befall(lambda_service)):
        watched.tells(
            words, "server", lambda: watched.metric("super_requests_total", f'outcome="{outcome}"') > 0
        )
        until(lambda: lambda_service.refused >= 10 or len(lambda_service.invocations) >= 10, ENOUGH_S)


# Faults of the rest of a stack, given the stack and its sampler.


def empty_the_cache(stack, _job):
    with stack.valkey.client() as client:
        client.flushall()


def restart_the_cache(stack, _job):
    stack.valkey.restart_empty()


def stop_the_cache(stack, _job):
    stack.valkey.kill()


def shrink_the_cache(stack, _job):
    with stack.valkey.client() as client:
        client.config_set("maxmemory", 64 * 2**20)


def have_the_cache_evict(stack, job):
    with stack.valkey.client() as client:
        client.config_set("maxmemory-policy", "allkeys-random")
        for number in range(200):
            client.set(f"another's {number}", bytes(2**20))
    shrink_the_cache(stack, job)


def forge_a_report(stack, job):
    with stack.valkey.client() as client:
        client.xadd(REPORT_PREFIX + job.encode(), {"f": b"rubbish"}, id="99999999999999-0")


def remove_the_store(stack, _job):
    shutil.rmtree(stack.valkey.directory / "store")


def replace_the_store(stack, job):
    remove_the_store(stack, job)
    (stack.valkey.directory / "store").touch()


def nothing_more(_stack, _job):
    """No further fault: one image is invalid, or the store refuses what is decoded."""


# The first log line, and the part of the coordinator that logs it.
FAULTS = {
    "cache emptied": (empty_the_cache, "the cache was restarted or emptied", "server"),
    "cache restarted": (restart_the_cache, "the cache was restarted or emptied", "server"),
    "cache stopped": (stop_the_cache, "waiting for the cache", "server"),
    "cache shrunk": (shrink_the_cache, "the cache's memory has changed", "server"),
    "cache evicts": (have_the_cache_evict, "the cache has evicted", "server"),
    "report forged": (forge_a_report, "skipping a read report", "cache"),
    "file spoilt": (nothing_more, "can never be decoded", "server"),
    "store removed": (remove_the_store, "the store", "store"),
    "store replaced": (replace_the_store, "the store", "store"),
    "store full": (nothing_more, "is full", "store"),
}


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "fault",
    ["cache emptied", *(pytest.param(name, marks=pytest.mark.slow) for name in list(FAULTS)[1:])],
)
def test_what_befalls_the_rest_shows_in_metrics_and_top_and_in_few_lines(tmp_path, images, capsys, fault):
    befall, words, part = FAULTS[fault]
    source, recipe = shutil.copytree(images, tmp_path / "images"), RECIPE
    if fault == "file spoilt":
        next(source.rglob("*.jpg")).write_bytes(b"no JPEG")
    watched = Watched(capsys, "--slots", "2")
    if fault.startswith("store"):
        watched.stack.arguments += ("--store", str(watched.stack.valkey.directory / "store"))
    if fault == "store full":
        watched.stack.arguments += ("--store-bytes", "4mb", "--request-samples", "2")
        recipe = Recipe.image(resize=128, crop=128)
    with watched.training(source.as_uri(), recipe) as sampler:
        if befall is not nothing_more:
            until(lambda: sampler.job_stats().samples_produced > 0, ENOUGH_S)
            assert words not in watched.log()
        befall(watched.stack, sampler.job)
        watched.tells(words, part)
        if befall is stop_the_cache:
            until(lambda: "no answer and no read reports since" in watched.cache_trouble(), SOON_S)
            watched.stack.valkey.start()
            until(lambda: watched.cache_trouble() == "", ENOUGH_S)


@pytest.mark.timeout(180)
@pytest.mark.slow
def test_a_node_of_a_cluster_that_comes_back_empty_shows(images, capsys, valkey_cluster):
    watched = Watched(capsys, "--slots", "2", cache=valkey_cluster.url)
    with watched.training(images.as_uri()) as sampler:
        until(lambda: sampler.job_stats().samples_produced > 0, ENOUGH_S)
        valkey_cluster.nodes[2].restart_empty()
        valkey_cluster.wait_until_ready()
        watched.tells("1 of the cache's 3 nodes are new", "server")


@pytest.mark.timeout(180)
@pytest.mark.slow
def test_one_of_two_executors_that_does_not_start_shows(lambda_service, valkey, capsys):
    del lambda_service  # it knows no such function
    words = "skipping the executor lambda for now"
    both = ("--executor", "local,lambda", "--slots", "1", "--lambda-function", "nobody")
    watched = Watched(capsys, *both, cache=valkey.url)
    with watched.stack:
        watched.tells(words, "executors")
        (_, of_lambda) = watched.shown("stats")["executors"]
        assert "nobody" in of_lambda["trouble"]
        assert watched.metric("super_executor_trouble", 'executor="lambda"') == 1.0
        watched.is_short()
