"""What a deployed function answers: its result, its error, and what AWS reports of the invocation.

The report says how long the function ran, what of that is billed, and how much memory it has. It is the last
line of the log that an answer carries: text, or JSON where the function logs JSON.
"""

from __future__ import annotations

import json
import math
import re
from base64 import b64decode
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from superdl.coordinator.executors.base import (
    ExecutorError,
    FunctionCrashedError,
    FunctionRaisedError,
    FunctionTimedOutError,
    PayloadTooLargeError,
)
from superdl.coordinator.executors.messages import read_object, read_result, read_warmed
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.protocol import installed_version
from superdl.super_wire.request import PrefetchFailure, clean_text

if TYPE_CHECKING:
    from superdl.coordinator.executors.lambda_client import Reply, Target
    from superdl.coordinator.executors.messages import Warmed
    from superdl.super_wire.request import Answer, PrefetchResult

__all__ = ["Report", "from_function", "read_outcome", "read_reply", "read_report", "read_warm_reply"]

_MAX_WORDS = 600
_MAX_KIND = 80
_MAX_RUN_US = 900_000_000
"""A function of Lambda runs for 15 minutes at most."""

_CRASHES = frozenset({"Extension.Crash", "Runtime.ExitError", "Runtime.OutOfMemory", "Sandbox.Failure"})
_CACHE_ERRORS = frozenset({"CacheError", "CacheUnreachableError", "WrongPasswordError"})
_OUT_OF_TIME = re.compile(r"Task timed out after [\d.]+ seconds")
_KILLED = re.compile(r"signal: \w+|Runtime exited")

_BILLED = re.compile(r"\tBilled Duration: (\d{1,9}) ms")
_MEMORY = re.compile(r"\tMemory Size: (\d{1,6}) MB")
_USED = re.compile(r"\tMax Memory Used: (\d{1,6}) MB")
_INIT = re.compile(r"\t(?:Init|Restore) Duration: (\d{1,9}(?:\.\d{1,6})?) ms")
_NUMBER_MAX = 10**9


def read_warm_reply(reply: Reply, target: Target, cache: str, ran_s: float) -> Warmed:
    """The answer to a warm event.

    Raises:
        ExecutorError: the function failed, or cannot reach ``cache``.
        ConfigError: it is another version of SUPER.
    """
    answer, _ = _answer(reply, target, ran_s, cache)
    warmed = read_warmed(answer, str(target), "deploy SUPER's function there")
    if warmed.function_version != installed_version():
        raise ConfigError(_another_version(warmed.function_version, target))
    return warmed


def read_reply(reply: Reply, target: Target, request_id: str, ran_s: float) -> PrefetchResult:
    """The answer to a prefetch request, with what is billed for it.

    Raises:
        ExecutorError: the function failed, or answered what is no result of this request, or is another
            version of SUPER than the coordinator.
    """
    answer, report = _answer(reply, target, ran_s)
    try:
        result = read_result(answer, request_id, str(target))
        _check_version(result, target)
    except FunctionRaisedError as error:
        error.ran_s = report.billed_ms / 1000 if report else ran_s
        raise
    if report is None:
        return replace(result, billed_us=_billed_us(result.duration_us))
    return replace(result, billed_us=report.billed_ms * 1000, memory_mb=result.memory_mb or report.memory_mb)


def read_outcome(answer: Answer, target: Target) -> PrefetchResult:
    """An outcome that came through the cache, with what its function's own time costs.

    Raises:
        ExecutorError: the function failed, or is another version of SUPER than the coordinator.
    """
    if answer.duration_us > _MAX_RUN_US:
        raise FunctionRaisedError(
            f"{target} says that it ran for {answer.duration_us} us, which no function may"
        )
    billed_us = _billed_us(answer.duration_us)
    if isinstance(answer, PrefetchFailure):
        said = json.dumps({"errorType": answer.error, "errorMessage": answer.message}).encode()
        failed = from_function(said, target, memory_mb=answer.memory_mb)
        failed.ran_s = billed_us / 1e6
        raise failed
    try:
        _check_version(answer, target)
    except FunctionRaisedError as error:
        error.ran_s = billed_us / 1e6
        raise
    return replace(answer, billed_us=billed_us)


def _check_version(result: PrefetchResult, target: Target) -> None:
    if result.function_version != installed_version():
        raise FunctionRaisedError(_another_version(result.function_version, target))


def _billed_us(duration_us: int) -> int:
    """AWS bills whole milliseconds."""
    return math.ceil(duration_us / 1000) * 1000


def _another_version(version: str, target: Target) -> str:
    """The function and this coordinator are no pair."""
    return (
        f"{target} is SUPER {version[:80]}, the coordinator is SUPER {installed_version()}: deploy the "
        f"function of {installed_version()}, or start a coordinator of {version[:80]}"
    )


def _answer(
    reply: Reply, target: Target, ran_s: float, cache: str = ""
) -> tuple[dict[str, Any], Report | None]:
    """An answer's JSON, and what AWS reports of it; with no report, a failure was billed ``ran_s``."""
    report = read_report(reply.log_result, reply.request_id) if reply.log_result else None
    if reply.function_error:
        memory_mb = report.memory_mb if report else 0
        error = from_function(reply.payload, target, cache=cache, memory_mb=memory_mb)
        error.ran_s = report.billed_ms / 1000 if report else ran_s
        raise error
    try:
        return read_object(reply.payload, str(target)), report
    except ExecutorError as error:
        error.ran_s = report.billed_ms / 1000 if report else ran_s
        raise


def from_function(payload: bytes, target: Target, *, memory_mb: int = 0, cache: str = "") -> ExecutorError:
    """What an answer that says ``X-Amz-Function-Error`` tells, as an executor's error.

    ``memory_mb`` is the function's, ``cache`` the address that a warm event named, where these are known.
    """
    kind, words = _told(payload)
    said = f"{kind}: {words}" if kind else words
    if kind == "Sandbox.Timedout" or _OUT_OF_TIME.search(words):
        return FunctionTimedOutError(
            f"{target} ran out of its own time limit ({said}): raise its timeout, or lower request_samples"
        )
    if kind in _CRASHES or (kind.startswith("Runtime.") and _KILLED.search(words)):
        memory = f" of {memory_mb} MB" if memory_mb else ""
        hint = (
            f"; its memory{memory} may be too small"
            if kind == "Runtime.OutOfMemory" or "killed" in words
            else ""
        )
        return FunctionCrashedError(f"{target} crashed ({said}){hint}")
    if kind == "Function.ResponseSizeTooLarge":
        return PayloadTooLargeError(
            f"{target} answered more than Lambda carries ({said}): lower request_samples"
        )
    if kind in {"Runtime.ImportModuleError", "Runtime.HandlerNotFound", "Runtime.UserCodeSyntaxError"}:
        return FunctionRaisedError(
            f"{target} does not start ({said}): build its package for its architecture and Python "
            "(make lambda-zip), with the handler lambda_prefetch.handler.handler"
        )
    if cache and kind in _CACHE_ERRORS:
        return FunctionRaisedError(
            f"{target} cannot use the cache at {cache} ({said}): see that it is in the cache's VPC, that the "
            "security groups let it in, and its own SUPER_CACHE_* settings"
        )
    return FunctionRaisedError(f"{target} raised {said}")


def _told(payload: bytes) -> tuple[str, str]:
    """Type and words of a function's error, whatever it is that came."""
    try:
        error: Any = json.loads(payload)
    except (ValueError, RecursionError):
        error = None
    if isinstance(error, dict):
        kind, words = error.get("errorType"), error.get("errorMessage")
        if isinstance(kind, str) or isinstance(words, str):
            return (
                clean_text(kind[:_MAX_KIND]) if isinstance(kind, str) else "",
                clean_text(words[:_MAX_WORDS]) if isinstance(words, str) else "",
            )
    return "", f"what is no error of Lambda's: {payload[:_MAX_WORDS].decode(errors='replace')!r}"


@dataclass(frozen=True, slots=True)
class Report:
    """``init_ms`` is above 0 where the invocation started its environment; that time is billed too."""

    billed_ms: int
    memory_mb: int = 0
    used_mb: int = 0
    init_ms: float = 0.0


def read_report(log_result: str, request_id: str) -> Report | None:
    """The report on one invocation, if the log has it.

    Args:
        log_result: the end of the function's log in base64, as the Invoke API gives it.
        request_id: the invocation's; reports on others, and what a function prints that looks alike, are
            passed over.
    """
    try:
        lines = b64decode(log_result, validate=True).decode(errors="replace").splitlines()
    except ValueError:
        return None
    for line in reversed(lines):
        if line.startswith(f"REPORT RequestId: {request_id}\t"):
            return _from_text(line)
        if line.startswith("{") and '"platform.report"' in line:
            report = _from_json(line, request_id)
            if report is not None:
                return report
    return None


def _from_text(line: str) -> Report | None:
    billed = _BILLED.search(line)
    if billed is None:
        return None
    memory, used, init = _MEMORY.search(line), _USED.search(line), _INIT.search(line)
    return Report(
        int(billed[1]),
        memory_mb=int(memory[1]) if memory else 0,
        used_mb=int(used[1]) if used else 0,
        init_ms=float(init[1]) if init else 0.0,
    )


def _from_json(line: str, request_id: str) -> Report | None:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    record = event.get("record")
    if event.get("type") != "platform.report" or not isinstance(record, dict):
        return None
    metrics = record.get("metrics")
    if record.get("requestId") != request_id or not isinstance(metrics, dict):
        return None
    billed_ms = _number(metrics, "billedDurationMs")
    if not billed_ms:
        return None
    return Report(
        math.ceil(billed_ms),  # AWS bills whole milliseconds
        memory_mb=int(_number(metrics, "memorySizeMB")),
        used_mb=int(_number(metrics, "maxMemoryUsedMB")),
        init_ms=_number(metrics, "initDurationMs") or _number(metrics, "restoreDurationMs"),
    )


def _number(metrics: dict[str, Any], name: str) -> float:
    value = metrics.get(name, 0)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value <= _NUMBER_MAX else 0.0
