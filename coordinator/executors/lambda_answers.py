"""Answers of a deployed function: its result, its error, and AWS's report of the invocation.

The report has the billed time and the function's memory. It is the last line of the log in an answer: text,
or JSON if the function logs JSON.
"""

from __future__ import annotations

import json
import math
import re
from base64 import b64decode
from dataclasses import dataclass, replace
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
from superdl.super_wire.request import PrefetchFailure

if TYPE_CHECKING:
    from superdl.coordinator.executors.lambda_client import Reply, Target
    from superdl.coordinator.executors.messages import Warmed
    from superdl.super_wire.request import Answer, PrefetchResult

__all__ = ["Report", "from_function", "read_outcome", "read_reply", "read_report", "read_warm_reply"]

_MAX_RUN_US = 900_000_000
"""A Lambda function runs for at most 15 minutes."""
_NUMBER_MAX = 10**9

_CRASHES = frozenset({"Extension.Crash", "Runtime.ExitError", "Runtime.OutOfMemory", "Sandbox.Failure"})
_BROKEN = frozenset({"Runtime.ImportModuleError", "Runtime.HandlerNotFound", "Runtime.UserCodeSyntaxError"})
_CACHE_ERRORS = frozenset({"CacheError", "CacheUnreachableError", "WrongPasswordError"})
_OUT_OF_TIME = re.compile(r"Task timed out after [\d.]+ seconds")
_KILLED = re.compile(r"signal: \w+|Runtime exited")
_BILLED = re.compile(r"\tBilled Duration: (\d{1,9}) ms")
_MEMORY = re.compile(r"\tMemory Size: (\d{1,6}) MB")


def read_warm_reply(reply: Reply, target: Target, cache: str, ran_s: float) -> Warmed:
    """Read the answer to a warm event.

    Raises:
        ExecutorError: the function failed, or cannot reach ``cache``.
        ConfigError: it is another version of SUPER.
    """
    answer, _ = _answer(reply, target, ran_s, cache)
    warmed = read_warmed(answer, str(target), "deploy SUPER's function there")
    if words := _mismatch(warmed.function_version, target):
        raise ConfigError(words)
    return warmed


def read_reply(reply: Reply, target: Target, request_id: str, ran_s: float) -> PrefetchResult:
    """Read the answer to a prefetch request, with its bill.

    Raises:
        ExecutorError: the function failed, its answer is no result of this request, or it is another version
            of SUPER than the coordinator.
    """
    answer, report = _answer(reply, target, ran_s)
    try:
        result = read_result(answer, request_id, str(target))
        if words := _mismatch(result.function_version, target):
            raise FunctionRaisedError(words)  # noqa: TRY301  # billed below
    except FunctionRaisedError as error:
        # A call that raised is billed like any other.
        error.ran_s = report.billed_ms / 1000 if report else ran_s
        raise
    if report is None:
        return replace(result, billed_us=_billed_us(result.duration_us))
    return replace(result, billed_us=report.billed_ms * 1000, memory_mb=result.memory_mb or report.memory_mb)


def read_outcome(answer: Answer, target: Target) -> PrefetchResult:
    """Read an outcome from the cache, with the bill for the function's own time.

    Raises:
        ExecutorError: the function failed, or is another version of SUPER than the coordinator.
    """
    if answer.duration_us > _MAX_RUN_US:
        raise FunctionRaisedError(
            f"{target} says that it ran for {answer.duration_us} us, which no function may"
        )
    billed_us = _billed_us(answer.duration_us)
    try:
        if isinstance(answer, PrefetchFailure):
            # In the form of the Invoke API, which from_function() reads.
            payload = json.dumps({"errorType": answer.error, "errorMessage": answer.message}).encode()
            raise from_function(payload, target, memory_mb=answer.memory_mb)
        if mismatch := _mismatch(answer.function_version, target):
            raise FunctionRaisedError(mismatch)
    except ExecutorError as error:
        error.ran_s = billed_us / 1e6
        raise
    return replace(answer, billed_us=billed_us)


def _billed_us(duration_us: int) -> int:
    """Round up to the whole milliseconds that AWS bills."""
    return math.ceil(duration_us / 1000) * 1000


def _mismatch(version: str, target: Target) -> str:
    """Return why the function does not match this coordinator; empty if it does."""
    if version == installed_version():
        return ""
    return (
        f"{target} is SUPER {version[:80]}, the coordinator is SUPER {installed_version()}: deploy the "
        f"function of {installed_version()}, or start a coordinator of {version[:80]}"
    )


def _answer(
    reply: Reply, target: Target, ran_s: float, cache: str = ""
) -> tuple[dict[str, Any], Report | None]:
    """Return an answer's JSON and AWS's report; without one, a failure is billed as ``ran_s``."""
    report = read_report(reply.log_result, reply.request_id) if reply.log_result else None
    try:
        if reply.function_error:
            memory_mb = report.memory_mb if report else 0
            raise from_function(reply.payload, target, cache=cache, memory_mb=memory_mb)
        return read_object(reply.payload, str(target)), report
    except ExecutorError as error:
        error.ran_s = report.billed_ms / 1000 if report else ran_s
        raise


def from_function(payload: bytes, target: Target, *, memory_mb: int = 0, cache: str = "") -> ExecutorError:
    """Turn an answer with ``X-Amz-Function-Error`` into an executor's error.

    ``memory_mb`` is the function's, ``cache`` the address in a warm event, if known.
    """
    kind, message = _told(payload)
    summary = f"{kind}: {message}" if kind else message
    if kind == "Sandbox.Timedout" or _OUT_OF_TIME.search(message):
        return FunctionTimedOutError(
            f"{target} ran out of its own time limit ({summary}): raise its timeout, or lower request_samples"
        )
    if kind in _CRASHES or (kind.startswith("Runtime.") and _KILLED.search(message)):
        memory = f" of {memory_mb} MB" if memory_mb else ""
        is_short = kind == "Runtime.OutOfMemory" or "killed" in message
        hint = f"; its memory{memory} may be too small" if is_short else ""
        return FunctionCrashedError(f"{target} crashed ({summary}){hint}")
    if kind == "Function.ResponseSizeTooLarge":
        return PayloadTooLargeError(
            f"{target} answered more than Lambda carries ({summary}): lower request_samples"
        )
    if kind in _BROKEN:
        return FunctionRaisedError(
            f"{target} does not start ({summary}): build its package for its architecture and Python "
            "(make lambda-zip), with the handler lambda_prefetch.handler.handler"
        )
    if cache and kind in _CACHE_ERRORS:
        return FunctionRaisedError(
            f"{target} cannot use the cache at {cache} ({summary}): see that it is in the cache's VPC, that "
            "the security groups let it in, and its own SUPER_CACHE_* settings"
        )
    return FunctionRaisedError(f"{target} raised {summary}")


def _told(payload: bytes) -> tuple[str, str]:
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


@dataclass(frozen=True, slots=True)
class Report:
    """The billed time, including the start of the environment, and the function's memory."""

    billed_ms: int
    memory_mb: int = 0


def read_report(log_result: str, request_id: str) -> Report | None:
    """Return the report on one invocation, or ``None`` if the log lacks it.

    Args:
        log_result: the end of the function's log in base64, as the Invoke API returns it.
        request_id: the invocation's. Reports on others, and what looks like one, are skipped.
    """
    try:
        lines = b64decode(log_result, validate=True).decode(errors="replace").splitlines()
    except ValueError:
        return None
    # From the end, because the function can print lines that look like a report.
    for line in reversed(lines):
        if line.startswith(f"REPORT RequestId: {request_id}\t"):
            billed, memory = _BILLED.search(line), _MEMORY.search(line)
            return Report(int(billed[1]), int(memory[1]) if memory else 0) if billed else None
        if line.startswith("{") and '"platform.report"' in line:
            report = _from_json(line, request_id)
            if report is not None:
                return report
    return None


def _from_json(line: str, request_id: str) -> Report | None:
    try:
        event = json.loads(line)
        record = event["record"]
        metrics = record["metrics"]
        # AWS bills whole milliseconds.
        billed_ms, memory_mb = math.ceil(metrics["billedDurationMs"]), int(metrics.get("memorySizeMB", 0))
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
    is_ours = event.get("type") == "platform.report" and record.get("requestId") == request_id
    # A function may print such a line itself, so accept only plausible numbers.
    if is_ours and 0 < billed_ms <= _NUMBER_MAX and 0 <= memory_mb <= _NUMBER_MAX:
        return Report(billed_ms, memory_mb)
    return None
