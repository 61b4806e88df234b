"""Whole epochs with functions on Lambda: every sample comes once, whatever happens to the functions.

Mismatched versions and settings are reported when the sampler is created, before training waits.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import boto3
import pytest
from moto.server import ThreadedMotoServer

from superdl.experiments.data import make_digits
from superdl.sampler.embedded.embedded import release_all
from superdl.super_wire.errors import BadSampleError, CacheError, EmbeddedError, SourceForbiddenError
from superdl.super_wire.protocol import installed_version
from tests.fixtures.lambda_answers import Answer
from tests.fixtures.stack import Stack
from tests.integration.delivery import reading, train

ROOT = Path(__file__).resolve().parents[2]
SOURCE = "s3://photos/train"
SMALL_STEPS = ("--request-samples", "4", "--lookahead-batches", "4")
CONCURRENCY = 2  # as many processes as this machine can take

# The real function, except that the one invocation that finds the file hangs.
HANGING = """
import os, time
from superdl.lambda_prefetch.handler import handler as real
def handler(event, context):
    try:
        os.remove(os.environ["HANG"])
    except FileNotFoundError:
        return real(event, context)
    time.sleep(600)
"""

# The real function, posing as another version of SUPER.
OTHER_VERSION = """
import superdl.lambda_prefetch.handler as real
real.installed_version = lambda: "9.9.9"
handler = real.handler
"""


@pytest.fixture
def stack(lambda_service, photos, valkey):
    """A coordinator whose functions run on Lambda."""
    lambda_service.concurrency = CONCURRENCY
    with Stack(
        arguments=("--executor", "lambda", "--lambda-warm", "2", *SMALL_STEPS), cache=valkey.url
    ) as running:
        yield running


def prefetches(service):
    """How many invocations carried a request."""
    return sum(b"super_request" in invocation.event for invocation in service.invocations)


def test_an_epoch_on_lambda_that_throttles_and_fails(stack, images, lambda_service):
    broken = Answer.error(500, "ServiceException", "an internal error")
    stats = train(
        stack,
        images,
        SOURCE,
        disturb={
            2: lambda: lambda_service.throttle_next(2),
            4: lambda: lambda_service.answer_next(broken),
            6: lambda_service.hang_up_next,
            8: lambda_service.crash_next,
        },
    )
    assert lambda_service.most_at_once <= CONCURRENCY
    assert lambda_service.refused >= 4
    log = stack.log.read_text()
    assert "is throttled (ConcurrentInvocationLimitExceeded). Lower lambda_concurrency" in log
    assert "crashed (Runtime.ExitError" in log
    assert stats.retries > 0
    assert stats.samples_produced >= 140  # samples from the crashed one may be read without its answer
    assert 150 / 4 <= stats.invocations <= prefetches(lambda_service)  # some probe a source, or race ahead
    assert stats.gb_s > 0
    assert stats.concurrency < stats.capacity == 100  # reduced by throttling


@pytest.mark.slow
def test_functions_that_hang_are_ended_by_lambda_and_their_samples_come(
    stack, images, lambda_service, tmp_path
):
    (tmp_path / "hanging.py").write_text(HANGING)
    hang = tmp_path / "hang"
    environment = {"HANG": str(hang), "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    lambda_service.deploy(handler="hanging.handler", timeout_s=4.0, environment=environment)
    train(stack, images, SOURCE, disturb={3: hang.touch})
    assert not hang.exists()
    assert "exceeded its own time limit" in stack.log.read_text()


@pytest.mark.slow
def test_a_function_of_another_version_is_not_read_from(stack, lambda_service, tmp_path):
    (tmp_path / "other.py").write_text(OTHER_VERSION)
    environment = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    with reading(SOURCE, stack.address) as (_, loader):
        batches = iter(loader)
        next(batches)
        lambda_service.deploy(handler="other.handler", environment=environment)
        with pytest.raises(BadSampleError, match="runs SUPER 9.9.9, but the coordinator runs SUPER"):
            list(batches)


@pytest.mark.slow
def test_each_side_needs_no_more_rights_than_the_page_says(
    lambda_service, photos, valkey, images, monkeypatch
):
    page = (ROOT / "docs" / "reference.md").read_text()
    with valkey.client() as client:
        for line in re.findall(r"^ACL SETUSER super-.*$", page, re.MULTILINE):
            client.execute_command(*line.split())
        client.execute_command(
            "ACL", "SETUSER", "default", "resetkeys", "-@all", "+ping", "+hello", "+client"
        )
    lambda_service.concurrency = CONCURRENCY
    user = {"SUPER_CACHE_PASSWORD": "SECRET"}
    lambda_service.deploy(environment={**user, "SUPER_CACHE_USERNAME": "super-function"})
    environment = {**user, "SUPER_CACHE_USERNAME": "super-coordinator"}
    arguments = ("--executor", "lambda", *SMALL_STEPS)
    with Stack(arguments=arguments, cache=valkey.url, environment=environment) as running:
        monkeypatch.setenv("SUPER_CACHE_USERNAME", "super-reader")
        monkeypatch.setenv("SUPER_CACHE_PASSWORD", "SECRET")
        train(running, images, SOURCE)
        assert "NOPERM" not in running.log.read_text()


# --------------------------------------------------------------------------------- the embedded default


@pytest.fixture
def embedded(lambda_service, photos, valkey, temporary, monkeypatch):
    """The embedded default, with functions on Lambda."""
    lambda_service.concurrency = CONCURRENCY
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setenv("SUPER_EXECUTOR", "lambda")
    monkeypatch.setenv("SUPER_CACHE", valkey.url)
    monkeypatch.setenv("SUPER_LAMBDA_WARM", "1")
    yield lambda_service
    release_all()


def test_a_function_that_may_not_read_the_bucket(embedded):
    embedded.deploy(environment={"AWS_SECRET_ACCESS_KEY": "another"})
    told = r"functions are not allowed to read s3://photos/train: .*403.*renew"
    with pytest.raises(SourceForbiddenError, match=told), reading(SOURCE, None):
        pass
    embedded.deploy(environment={})
    with reading(SOURCE, None):
        pass


@pytest.mark.slow
@pytest.mark.parametrize(
    ("user", "error", "words"),
    [
        ("idle", CacheError, "not allowed to write to the cache .*NOPERM.*the rights of their user"),
        ("nobody", EmbeddedError, r"cannot use the cache .*redis://.*own SUPER_CACHE_\* settings"),
    ],
)
def test_a_function_that_may_not_use_the_cache(embedded, valkey, user, error, words):
    with valkey.client() as client:
        client.execute_command("ACL", "SETUSER", "idle", "on", ">word", "~super:*", "-@all", "+ping")
    embedded.deploy(environment={"SUPER_CACHE_USERNAME": user, "SUPER_CACHE_PASSWORD": "word"})
    with pytest.raises(error, match=words), reading(SOURCE, None):
        pass


@pytest.mark.slow
def test_a_right_that_is_lost_while_training_is_told_in_the_first_batch_that_lacks_it(embedded):
    with reading(SOURCE, None) as (_, loader):
        embedded.deploy(environment={"AWS_SECRET_ACCESS_KEY": "another"})
        with pytest.raises(BadSampleError, match="403.*renew the AWS credentials"):
            list(loader)


@pytest.mark.slow
def test_a_function_of_another_version_is_refused_at_the_start(embedded):
    embedded.deploy(handler="tests.coordinator.executors.functions.of_another_version")
    remedy = rf"SUPER 9\.9\.9, but the coordinator runs SUPER {installed_version()}. Deploy version"
    with pytest.raises(EmbeddedError, match=remedy), reading(SOURCE, None):
        pass


@pytest.mark.slow
def test_a_bucket_in_another_region(embedded, images, monkeypatch, caplog):
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("SUPER_S3_ENDPOINT_URL", f"http://{host}:{port}")
    client = boto3.session.Session().client("s3", endpoint_url=f"http://{host}:{port}")
    try:
        client.create_bucket(
            Bucket="far-wrong", CreateBucketConfiguration={"LocationConstraint": "eu-west-3"}
        )
        for path in sorted(images.glob("*/*.jpg"))[:8]:
            client.upload_file(str(path), "far-wrong", f"train/{path.parent.name}/{path.name}")
        with reading("s3://far-wrong/train", None):
            pass
    finally:
        client.close()
        server.stop()
    assert "region eu-west-3, but the functions run in us-east-1" in caplog.text


@pytest.mark.slow
def test_a_training_run(embedded, object_store, tmp_path):
    make_digits(object_store.directory / "digits")
    command = [sys.executable, "-m", "superdl.main", "run", "digits", "--json"]
    for override in (
        *(f"data.{split}=s3://digits/{split}" for split in ("train", "val")),
        *(f"output={tmp_path / 'runs'}", "loader.num_workers=1", "epochs=2"),
    ):
        command += ["--set", override]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["executor"], report["status"]) == ("lambda", "finished")
    assert report["val_accuracy"] > 0.5
    assert embedded.invocations
    lines = {line["name"]: line["usd"] for line in report["bill"]["lines"]}
    used = [epoch[split]["job"] for epoch in report["epochs"] for split in ("train", "val")]
    used.append(report["rest"])
    assert lines["functions"] > 0
    assert lines["cache"] > lines["coordinator"] > 0
    assert lines["GETs"] == pytest.approx(4e-7 * sum(job["source_requests"] for job in used))
    assert report["bill"]["usd"] == pytest.approx(sum(job["usd"] for job in used)), "double billing"
