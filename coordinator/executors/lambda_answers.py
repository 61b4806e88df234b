"""Answers of a deployed function: its result, or its error with a remedy."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from superdl.coordinator.executors.base import (
    MAX_KIND,
    MAX_WORDS,
    ExecutorError,
    FunctionCrashedError,
    FunctionRaisedError,
    FunctionTimedOutError,
    PayloadTooLargeError,
)
from superdl.coordinator.executors.messages import read_object, read_result, read_warmed
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.protocol import installed_version
from superdl.super_wire.redaction import clean_text

if TYPE_CHECKING:
    from superdl.coordinator.executors.lambda_client import Reply, Target
    from superdl.coordinator.executors.messages import Warmed
    from superdl.super_wire.request import PrefetchResult

__all__ = ["from_function", "read_reply", "read_warm_reply"]

_OUT_OF_TIME = re.compile(r"Task timed out after [\d.]+ seconds")
_KILLED = re.compile(r"signal: \w+|Runtime exited")

_CRASH = (FunctionCrashedError, "{target} crashed ({summary})")
_OUT_OF_MEMORY = (FunctionCrashedError, "{target} crashed ({summary}); its memory may be too small")
_TIMED_OUT = (
    FunctionTimedOutError,
    "{target} ran out of its own time limit ({summary}): raise its timeout, or lower request_samples",
)
_BROKEN = (
    FunctionRaisedError,
    (
        "{target} does not start ({summary}): build its package for its architecture and Python "
        "(make lambda-zip), with the handler superdl.lambda_prefetch.handler.handler"
    ),
)
_NO_CACHE = (
    FunctionRaisedError,
    (
        "{target} cannot use the cache at {cache} ({summary}): see that it is in the cache's VPC, that the "
        "security groups let it in, and its own SUPER_CACHE_* settings"
    ),
)
_BY_TYPE: dict[str, tuple[type[ExecutorError], str]] = {
    "Sandbox.Timedout": _TIMED_OUT,
    "Extension.Crash": _CRASH,
    "Runtime.ExitError": _CRASH,
    "Sandbox.Failure": _CRASH,
    "Runtime.OutOfMemory": _OUT_OF_MEMORY,
    "Runtime.ImportModuleError": _BROKEN,
    "Runtime.HandlerNotFound": _BROKEN,
    "Runtime.UserCodeSyntaxError": _BROKEN,
    "Function.ResponseSizeTooLarge": (
        PayloadTooLargeError,
        "{target} answered more than Lambda carries ({summary}): lower request_samples",
    ),
}
_CACHE_ERRORS = frozenset({"CacheError", "CacheUnreachableError", "WrongPasswordError"})


def read_warm_reply(reply: Reply, target: Target, cache: str) -> Warmed:
    """Read the answer to a warm event.

    ``ExecutorError``: the function failed, or cannot reach ``cache``.
    ``ConfigError``: another version.
    """
    if reply.function_error:
        raise from_function(reply.payload, target, cache=cache)
    answer = read_object(reply.payload, str(target))
    warmed = read_warmed(answer, str(target), "deploy SUPER's function there")
    if words := _mismatch(warmed.function_version, target):
        raise ConfigError(words)
    return warmed


def read_reply(reply: Reply, target: Target, request_id: str, ran_s: float) -> PrefetchResult:
    """Read the answer to a prefetch request that took ``ran_s``; add its bill.

    ``ExecutorError``: the function failed, this is no result of the request, or it
    is another version of SUPER.
    """
    try:
        if reply.function_error:
            raise from_function(reply.payload, target)
        result = read_result(read_object(reply.payload, str(target)), request_id, str(target))
        if words := _mismatch(result.function_version, target):
            raise FunctionRaisedError(words)
    except ExecutorError as error:
        error.ran_s = ran_s  # a call that raised is billed like any other
        raise
    # AWS bills an environment's start, too, which no answer reports: a cold start
    # counts as long as the call took, an upper bound.
    return replace(result, billed_us=_billed_us(ran_s * 1e6 if result.cold_start else result.duration_us))


def _billed_us(duration_us: float) -> int:
    # AWS bills whole milliseconds.
    return math.ceil(duration_us / 1000) * 1000


def _mismatch(version: str, target: Target) -> str:
    """Return why the function does not match this coordinator; empty if it does."""
    if version == installed_version():
        return ""
    return (
        f"{target} is SUPER {version[:80]}, the coordinator is SUPER {installed_version()}: deploy the "
        f"function of {installed_version()}, or start a coordinator of {version[:80]}"
    )


def from_function(payload: bytes, target: Target, *, cache: str = "") -> ExecutorError:
    """Turn an answer with ``X-Amz-Function-Error`` into an error; ``cache``: the
    address in a warm event.
    """
    kind, message = _type_and_message(payload)
    summary = f"{kind}: {message}" if kind else message
    failure = _BY_TYPE.get(kind)
    if _OUT_OF_TIME.search(message):
        failure = _TIMED_OUT
    elif kind.startswith("Runtime.") and _KILLED.search(message):
        failure = _CRASH
    elif cache and kind in _CACHE_ERRORS:
        failure = _NO_CACHE
    if failure is _CRASH and "killed" in message:
        failure = _OUT_OF_MEMORY
    error, words = failure or (FunctionRaisedError, "{target} raised {summary}")
    return error(words.format(target=target, summary=summary, cache=cache))


def _type_and_message(payload: bytes) -> tuple[str, str]:
    """Return type and message of a function's error, whatever was received."""
    try:
        error: Any = json.loads(payload)
    except (ValueError, RecursionError):
        error = None
    kind, words = (
        clean_text(text[:most])
        if isinstance(error, dict) and isinstance(text := error.get(name), str)
        else ""
        for name, most in (("errorType", MAX_KIND), ("errorMessage", MAX_WORDS))
    )
    if kind or words:
        return kind, words
    return "", f"what is no error of Lambda's: {payload[:MAX_WORDS].decode(errors='replace')!r}"
