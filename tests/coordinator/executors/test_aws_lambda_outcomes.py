"""Any answer of functions or AWS becomes a result or an error with its reason, remedy and bill."""

import json
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from superdl.coordinator.core import FailureKind
from superdl.coordinator.executors.aws_lambda import read_reply, read_warmed
from superdl.coordinator.executors.base import ExecutorError
from superdl.coordinator.executors.lambda_client import Reply, Target, from_function
from superdl.super_wire.protocol import installed_version
from tests.coordinator.executors.asking import TIMEOUT_S, ask, failing
from tests.coordinator.executors.lambda_running import executor_for, handler_of, using
from tests.fixtures.lambda_answers import Answer

MAX_MESSAGE = 1500


@pytest.fixture
def service(lambda_service):
    """A Lambda service that runs misbehaving functions."""
    lambda_service.deploy(handler=handler_of("misbehaving"))
    return lambda_service


async def failing_all(service, check, *requests):
    """Make requests one after another and pass the error of each to ``check``."""
    async with using(executor_for(service)) as executor:
        for request in requests:
            with pytest.raises(ExecutorError) as told:
                await executor.invoke(request, timeout_s=TIMEOUT_S)
            check(request.request_id, told.value)
        result = await executor.invoke(ask(), timeout_s=TIMEOUT_S)  # the executor still works
        assert result.outcomes == ("cached",)


DOES = {
    "raise:no luck": (FailureKind.RAISED, "ValueError: no luck"),
    "raise:many words ": (FailureKind.RAISED, "ValueError: many words many words"),
    "not-json": (FailureKind.RAISED, "Runtime.MarshalError"),
    "nonsense": (FailureKind.RAISED, "deploy one version"),
    "list": (FailureKind.RAISED, r"'\[1\]'"),
    "for-another": (FailureKind.RAISED, "for-another.* 'another'"),
    "exit:3": (FailureKind.CRASHED, "exit status 3"),
    "kill": (FailureKind.CRASHED, "signal: killed.* memory"),
    "too-much": (FailureKind.RAISED, "request_samples"),
}


async def test_each_failure_of_a_function_has_its_error(service, subtests):
    def check(does, error):
        with subtests.test(does):
            kind, named = DOES[does]
            assert error.kind is kind
            assert re.search(named, str(error)), error
            assert str(error).count("the function super-prefetch (http://127.0.0.1:") == 1
            assert len(str(error)) < MAX_MESSAGE
            assert error.ran_s >= 0.001  # it ran, so it is billed

    await failing_all(service, check, *map(ask, DOES))


async def test_a_function_that_exceeds_its_own_time_limit(service):
    service.deploy(timeout_s=0.5)

    def check(_does, error):
        assert error.kind is FailureKind.TIMED_OUT
        assert re.search(r"own time limit .*timed out after 0\.50 seconds.*Raise its timeout", str(error))
        assert error.ran_s >= 0.5

    await failing_all(service, check, ask("hang"))


RESERVED = {"Reason": "ReservedFunctionConcurrentInvocationLimitExceeded"}
CODES = [
    (429, "TooManyRequestsException", {"Reason": "Concurrent"}, FailureKind.THROTTLED, "quota"),
    (429, "TooManyRequestsException", RESERVED, FailureKind.THROTTLED, "reserved concurrency"),
    (413, "RequestTooLargeException", {}, FailureKind.RAISED, "request_samples"),
    (400, "InvalidRequestContentException", {}, FailureKind.RAISED, "InvalidRequestContentException"),
    (404, "ResourceNotFoundException", {}, FailureKind.UNAVAILABLE, "lambda_function"),
    (403, "AccessDeniedException", {}, FailureKind.UNAVAILABLE, "lambda:InvokeFunction"),
    (403, "ExpiredTokenException", {}, FailureKind.UNAVAILABLE, "credentials"),
    (500, "ServiceException", {}, FailureKind.UNAVAILABLE, "ServiceException: an explanation"),
    (503, "", {}, FailureKind.UNAVAILABLE, "super-prefetch"),
]
PROXIES = [b"", b"<html>Bad Gateway</html>", b"[" * 200_000, b'{"message": []}']


async def test_each_error_of_the_invoke_api_and_of_proxies(service, subtests):
    answers = [
        (Answer.error(status, code, "an explanation", **members), kind, named)
        for status, code, members, kind, named in CODES
    ]
    answers += [
        (Answer(status, {}, body), FailureKind.UNAVAILABLE, "super-prefetch")
        for status in (400, 502)
        for body in PROXIES
    ]
    async with using(executor_for(service)) as executor:
        for number, (answer, kind, named) in enumerate(answers, start=1):
            with subtests.test(named, number=number):
                service.answer_next(answer)
                with failing(kind, match=named) as told:
                    await executor.invoke(ask(), timeout_s=TIMEOUT_S)
                assert "the function super-prefetch" in str(told.value)
                assert len(str(told.value)) < MAX_MESSAGE
                assert told.value.ran_s == 0.0  # nothing ran, so nothing is billed
                assert service.refused == number  # one attempt: retrying is up to the core
        await executor.invoke(ask(), timeout_s=TIMEOUT_S)


async def test_a_broken_connection_may_have_run_the_function(service):
    async with using(executor_for(service)) as executor:
        service.hang_up_next()
        with failing(FailureKind.UNAVAILABLE, match="the connection to .* broke before it answered") as told:
            await executor.invoke(ask(), timeout_s=TIMEOUT_S)
        assert told.value.ran_s > 0  # assumed to have run
        await executor.invoke(ask(), timeout_s=TIMEOUT_S)


TARGET = Target("super-prefetch", "us-east-1")
MAX_CHARACTERS = 5000  # an escape takes up to ten
JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
ERRORS = st.fixed_dictionaries({}, optional={"errorType": JSON, "errorMessage": JSON, "stackTrace": JSON})
PAYLOADS = st.binary(max_size=200) | (JSON | ERRORS).map(lambda value: json.dumps(value).encode())


def said(kind, words):
    return json.dumps({"errorType": kind, "errorMessage": words}).encode()


@pytest.mark.parametrize(
    ("payload", "kind"),
    [
        (said("Sandbox.Timedout", "x"), FailureKind.TIMED_OUT),
        # Lambda's wording for years, still in use in places.
        (b'{"errorMessage": "2026 Task timed out after 3.00 seconds"}', FailureKind.TIMED_OUT),
        (said("Runtime.OutOfMemory", "x"), FailureKind.CRASHED),
        (said("Extension.Crash", "x"), FailureKind.CRASHED),
        (said("Runtime.Unknown", "x Error: signal: segmentation fault"), FailureKind.CRASHED),
        (said("Runtime.ImportModuleError", "Unable to import module"), FailureKind.RAISED),
        (said("E" * 6_000_000, "w" * 6_000_000), FailureKind.RAISED),
        (said("Odd\udfff", "no \ud800 name"), FailureKind.RAISED),
    ],
)
def test_each_error_type_of_a_function(payload, kind):
    error = from_function(payload, TARGET, 0.25)
    assert (error.kind, error.ran_s) == (kind, 0.25)
    assert str(error).startswith("the function super-prefetch (us-east-1) ")
    assert len(str(error)) < MAX_CHARACTERS
    assert str(error).encode()


@given(PAYLOADS)
@example(b"[" * 100_000)
def test_any_response_is_a_result_or_a_typed_error(payload):
    reply = Reply(payload, 0.25)
    for read, ran_s in (
        (lambda: read_reply(reply, TARGET, ask("r")), 0.25),
        (lambda: read_warmed(reply, TARGET), 0.0),
    ):
        with pytest.raises(ExecutorError) as told:
            read()
        assert (len(str(told.value)) < MAX_CHARACTERS, told.value.ran_s) == (True, ran_s)
    assert len(str(from_function(payload, TARGET, 0.25))) < MAX_CHARACTERS


def test_a_functions_name_shows_no_password():
    assert str(Target("f", "us-east-1", "http://u:hunter2@host:1")) == "the function f (http://***@host:1)"


WARM = {"function_version": installed_version(), "golden": "a" * 32}


def warmed(**changes):
    return read_warmed(Reply(json.dumps({**WARM, **changes}).encode(), 0.0), TARGET)


def test_a_warm_reply_has_version_and_fingerprint():
    assert warmed() == WARM["golden"]
    for wrong in ({"golden": "x"}, {"golden": None}, {"function_version": 1}):
        with pytest.raises(ExecutorError, match="answered a warm event with .*Deploy SUPER's function"):
            warmed(**wrong)
