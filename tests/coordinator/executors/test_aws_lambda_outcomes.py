"""All ways in which an invocation on Lambda fails are told apart, with reason, remedy and bill."""

from __future__ import annotations

import re

import pytest

from superdl.coordinator.core import FailureKind
from superdl.coordinator.executors.base import (
    ExecutorError,
)
from superdl.super_wire.protocol import installed_version
from tests.coordinator.executors.asking import TIMEOUT_S, ask, failing
from tests.coordinator.executors.lambda_running import executor_for, handler_of, using
from tests.fixtures.lambda_answers import Answer

MAX_MESSAGE = 1500


@pytest.fixture
def service(lambda_service):
    """It runs misbehaving functions."""
    lambda_service.deploy(handler=handler_of("misbehaving"))
    return lambda_service


async def failing_all(service, check, *requests):
    """Makes requests one after the other, and hands each one's error to ``check``."""
    async with using(executor_for(service)) as executor:
        for request in requests:
            with pytest.raises(ExecutorError) as told:
                await executor.invoke(request, timeout_s=TIMEOUT_S)
            check(request.request_id, told.value)
        result = await executor.invoke(ask(), timeout_s=TIMEOUT_S)  # and it goes on
        assert result.outcomes == ("cached",)


DOES = [
    ("raise:no luck", FailureKind.RAISED, "raised ValueError: no luck"),
    ("raise:many words ", FailureKind.RAISED, "raised ValueError: many words many words"),
    ("not-json", FailureKind.RAISED, "raised Runtime.MarshalError: Unable to marshal response"),
    ("nonsense", FailureKind.RAISED, "answered what is no prefetch result: .*deploy one version"),
    ("list", FailureKind.RAISED, r"answered '\[1\]', which is no result"),
    ("for-another", FailureKind.RAISED, "was asked for request for-another and answered for 'another'"),
    (
        "other-version",
        FailureKind.RAISED,
        rf"is SUPER 9\.9\.9, the coordinator is SUPER {installed_version()}: deploy .* or start a coord",
    ),
    ("exit:3", FailureKind.CRASHED, r"crashed \(Runtime.ExitError: .*exit status 3\)$"),
    ("kill", FailureKind.CRASHED, "signal: killed.*; its memory may be too small"),
    ("too-much", FailureKind.RAISED, "answered more than Lambda carries .*: lower request_samples"),
]


async def test_what_the_function_does(service, subtests):
    expected = {does: (kind, words) for does, kind, words in DOES}

    def check(does, error):
        with subtests.test(does):
            kind, words = expected[does]
            assert error.kind is kind
            assert re.search(words, str(error)), error
            assert str(error).count("the function super-prefetch (http://127.0.0.1:") == 1
            assert len(str(error)) < MAX_MESSAGE
            assert error.ran_s >= 0.001  # it ran, and that is billed

    await failing_all(service, check, *map(ask, expected))


async def test_a_function_that_runs_into_its_own_time_limit(service):
    service.deploy(timeout_s=0.5)

    def check(_does, error):
        assert error.kind is FailureKind.TIMED_OUT
        assert re.search(r"own time limit .*timed out after 0\.50 seconds.*: raise its timeout", str(error))
        assert error.ran_s >= 0.5

    await failing_all(service, check, ask("hang"))


RESERVED = {"Reason": "ReservedFunctionConcurrentInvocationLimitExceeded"}
CODES = [
    (429, "TooManyRequestsException", {"Reason": "Concurrent"}, FailureKind.THROTTLED, "quota"),
    (
        429,
        "TooManyRequestsException",
        RESERVED,
        FailureKind.THROTTLED,
        "raise the function's reserved concurrency",
    ),
    (502, "EC2ThrottledException", {}, FailureKind.THROTTLED, "EC2ThrottledException"),
    (413, "RequestTooLargeException", {}, FailureKind.RAISED, "lower request_samples"),
    (400, "InvalidRequestContentException", {}, FailureKind.RAISED, "the request is refused"),
    (
        404,
        "ResourceNotFoundException",
        {},
        FailureKind.UNAVAILABLE,
        "deploy it, or correct lambda_function and lambda",
    ),
    (
        403,
        "AccessDeniedException",
        {},
        FailureKind.UNAVAILABLE,
        "may not invoke .*: grant its .* lambda:InvokeFunction",
    ),
    (
        403,
        "ExpiredTokenException",
        {},
        FailureKind.UNAVAILABLE,
        "does not accept the coordinator's .* renew them",
    ),
    (
        502,
        "KMSAccessDeniedException",
        {},
        FailureKind.UNAVAILABLE,
        "could not be invoked .KMSAccessDeniedException",
    ),
    (
        409,
        "ResourceConflictException",
        {},
        FailureKind.UNAVAILABLE,
        "is not ready yet .*: wait until its state is Active",
    ),
    (
        500,
        "ServiceException",
        {},
        FailureKind.UNAVAILABLE,
        "could not be invoked .ServiceException: an explanation",
    ),
    (503, "", {}, FailureKind.UNAVAILABLE, "could not be invoked"),
]


async def test_what_the_invoke_api_answers(service, subtests):
    async with using(executor_for(service)) as executor:
        for number, (status, code, members, kind, words) in enumerate(CODES, start=1):
            with subtests.test(code, status=status, **members):
                service.answer_next(Answer.error(status, code, "an explanation", **members))
                with failing(kind, match=words) as told:
                    await executor.invoke(ask(), timeout_s=TIMEOUT_S)
                assert "the function super-prefetch" in str(told.value)
                assert told.value.ran_s == 0.0  # nothing ran, nothing is billed
                assert service.refused == number  # asked once: the core retries
        await executor.invoke(ask(), timeout_s=TIMEOUT_S)


@pytest.mark.parametrize("status", [400, 502])
async def test_what_a_proxy_may_answer_in_aws_s_place(service, subtests, status):
    async with using(executor_for(service)) as executor:
        for body in (
            b"",
            b"<html>Bad Gateway</html>",
            b"\xff\xfe",
            b"[]",
            b"7",
            b"[" * 200_000,
            b'{"message": []}',
        ):
            with subtests.test(body[:20]):
                service.answer_next(Answer(status, {}, body))
                with pytest.raises(
                    ExecutorError, match="the function super-prefetch .* could not be in"
                ) as told:
                    await executor.invoke(ask(), timeout_s=TIMEOUT_S)
                assert told.value.kind is FailureKind.UNAVAILABLE
                assert len(str(told.value)) < MAX_MESSAGE
        await executor.invoke(ask(), timeout_s=TIMEOUT_S)


async def test_a_connection_that_breaks(service):
    async with using(executor_for(service)) as executor:
        service.hang_up_next()
        with failing(
            FailureKind.UNAVAILABLE, match="the connection to .* broke before it had answered"
        ) as told:
            await executor.invoke(ask(), timeout_s=TIMEOUT_S)
        assert told.value.ran_s > 0  # as far as anybody knows
        await executor.invoke(ask(), timeout_s=TIMEOUT_S)


async def test_a_request_that_is_too_large_is_not_sent(service):
    keys = tuple(f"{number}-{'k' * 1000}" for number in range(4000))

    async with using(executor_for(service)) as executor:
        begun = len(service.invocations)
        request = ask("large", keys=keys, versions=("é" * 200,) * 4000)
        with failing(FailureKind.RAISED, match=r"a request of 8,[0-9,]+ bytes is more than Lambda takes"):
            await executor.invoke(request, timeout_s=TIMEOUT_S)
        assert len(service.invocations) == begun
