"""The function's image, built from its Dockerfile and run by AWS's own runtime client, as Lambda runs it.

The Runtime API is this test's, with the paths that AWS documents; the S3 server and the cache are real.
"""

import hashlib
import json
import queue
import time
from importlib import metadata

import pytest

from superdl.lambda_prefetch.decoder_fingerprint import decoder_fingerprint
from superdl.super_wire.recipe import Recipe
from superdl.super_wire.request import PrefetchResult
from tests.fixtures.loopback_http import LoopbackServer
from tests.fixtures.object_store import KEY, SECRET
from tests.lambda_prefetch.prefetching import array_of, encode, pixels, request_for

pytestmark = [pytest.mark.slow, pytest.mark.containers, pytest.mark.timeout(1200)]

ANSWER_TIMEOUT_S = 60.0


class RuntimeApi:
    """Gives events to one runtime client, one at a time, and takes its answers."""

    def __init__(self):
        self._events = queue.SimpleQueue()
        self._answers = queue.SimpleQueue()
        self._server = LoopbackServer(self._answer)
        self.address = f"127.0.0.1:{self._server.port}"

    def invoke(self, event):
        """What the function answers; a failure of it fails the test."""
        self._events.put(event)
        path, answer = self._answers.get(timeout=ANSWER_TIMEOUT_S)
        assert path.endswith("/response"), answer
        return answer

    def _answer(self, request):
        if not request.path.endswith("/invocation/next"):
            self._answers.put((request.path, json.loads(request.read_body())))
            request.answer(202, {}, b"")
            return
        event = self._events.get()
        if event is None:
            request.hang_up()
            return
        headers = {  # all that Lambda sends: the client crashes where the trace id is missing
            "Content-Type": "application/json",
            "Lambda-Runtime-Trace-Id": "Root=1-00000000-000000000000000000000000;Sampled=0",
            "Lambda-Runtime-Aws-Request-Id": "container-1",
            "Lambda-Runtime-Deadline-Ms": str(int((time.time() + 60) * 1000)),
            "Lambda-Runtime-Invoked-Function-Arn": "arn:aws:lambda:us-east-1:123456789012:function:test",
        }
        request.answer(200, headers, event.encode())

    def close(self):
        self._events.put(None)
        self._server.close()


@pytest.fixture
def runtime_api():
    api = RuntimeApi()
    yield api
    api.close()


def test_it_answers_warm_events_and_makes_the_same_records(container_host, runtime_api, object_store, valkey):
    content = encode(pixels(seed=1))  # PNG: what is decoded is what was drawn
    (object_store.directory / "data").mkdir()
    (object_store.directory / "data" / "a.png").write_bytes(content)
    variables = {
        "AWS_LAMBDA_RUNTIME_API": runtime_api.address,
        "AWS_LAMBDA_FUNCTION_NAME": "super-prefetch",
        "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "1769",
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "SUPER_S3_ENDPOINT_URL": object_store.url,
    }
    options = [word for name, value in variables.items() for word in ("--env", f"{name}={value}")]
    container = container_host.start(container_host.build("function"), options=tuple(options))
    try:
        warmed = runtime_api.invoke(json.dumps({"super_warm": 1, "cache": valkey.url}))
    except queue.Empty:
        pytest.fail(f"no answer; exit code {container.state('ExitCode')}:\n{container.logs()}")
    assert warmed["function_version"] == metadata.version("superdl")
    assert warmed["golden"] == decoder_fingerprint()
    assert warmed["cold_start"] is True
    etag = hashlib.md5(content, usedforsecurity=False).hexdigest()
    request = request_for("s3://data", {"a.png": etag}, valkey.url, Recipe([]))
    result = PrefetchResult.from_mapping(runtime_api.invoke(request.to_json()))
    assert (result.outcomes, result.cold_start) == (("cached",), False)
    assert array_of(valkey, request, 0).tobytes() == pixels(seed=1).tobytes()
    _, *metrics = [json.loads(line) for line in container.logs().splitlines() if line.startswith("{")]
    assert [line["_aws"]["CloudWatchMetrics"][0]["Namespace"] for line in metrics if "_aws" in line] == [
        "SUPER"
    ]
