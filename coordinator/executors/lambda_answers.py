"""What a deployed function answers, read and held to what the coordinator is: same version, same pixels.

An answer comes over a network. What is no answer of ours, and what another version of SUPER says, is refused
with the remedy; what AWS billed for it is added.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from superdl.coordinator.executors.base import ExecutorError, FunctionRaisedError
from superdl.coordinator.executors.lambda_errors import from_function
from superdl.coordinator.executors.lambda_report import read_report
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.request import PrefetchResult
from superdl.super_wire.version import installed_version

if TYPE_CHECKING:
    from superdl.coordinator.executors.lambda_client import Reply, Target
    from superdl.coordinator.executors.lambda_report import Report

__all__ = ["Warmed", "another_version", "read_result", "read_warmed"]

_DIGEST = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Warmed:
    """What a function told when it was warmed."""

    function_version: str
    golden: str
    clock_s: float = 0.0


def read_warmed(reply: Reply, target: Target, cache: str, ran_s: float) -> Warmed:
    """The answer to a warm event.

    Raises:
        ExecutorError: the function failed, or cannot reach ``cache``.
        ConfigError: it is another version of SUPER.
    """
    answer, _ = _answer(reply, target, ran_s, cache)
    version, golden = answer.get("function_version"), answer.get("golden")
    if not isinstance(version, str) or not isinstance(golden, str) or not _DIGEST.fullmatch(golden):
        msg = f"{target} answered a warm event with {_shown(reply.payload)}: deploy SUPER's function there"
        raise ExecutorError(msg)
    if version != installed_version():
        raise another_version(version, target)
    clock_s = answer.get("clock_s")
    if not isinstance(clock_s, float) or not math.isfinite(clock_s):
        clock_s = 0.0
    return Warmed(version, golden, clock_s)


def read_result(reply: Reply, target: Target, request_id: str, ran_s: float) -> PrefetchResult:
    """The answer to a prefetch request, with what is billed for it.

    Raises:
        ExecutorError: the function failed, or answered what is no result of this request, or is another
            version of SUPER than the coordinator.
    """
    answer, report = _answer(reply, target, ran_s)
    billed_s = report.billed_ms / 1000 if report else ran_s
    try:
        result = PrefetchResult.from_mapping(answer)
    except ConfigError as error:
        raise _raised(f"{target} answered what is no prefetch result: {error}", billed_s) from error
    if result.request_id != request_id:
        msg = f"{target} was asked for request {request_id} and answered for {result.request_id[:80]!r}"
        raise _raised(msg, billed_s)
    if result.function_version != installed_version():
        raise _raised(str(another_version(result.function_version, target)), billed_s)
    if report is None:  # AWS bills whole milliseconds
        return replace(result, billed_us=math.ceil(result.duration_us / 1000) * 1000)
    return replace(result, billed_us=report.billed_ms * 1000, memory_mb=result.memory_mb or report.memory_mb)


def another_version(version: str, target: Target) -> ConfigError:
    """The function and this coordinator are no pair."""
    return ConfigError(
        f"{target} is SUPER {version[:80]}, the coordinator is SUPER {installed_version()}: deploy the "
        f"function of {installed_version()}, or start a coordinator of {version[:80]}"
    )


def _answer(
    reply: Reply, target: Target, ran_s: float, cache: str = ""
) -> tuple[dict[str, Any], Report | None]:
    """An answer's JSON, and what AWS reports of it; with no report, a failure was billed ``ran_s``."""
    report = read_report(reply.log_result, reply.request_id) if reply.log_result else None
    billed_s = report.billed_ms / 1000 if report else ran_s
    if reply.function_error:
        error = from_function(reply.payload, target, cache=cache, memory_mb=report.memory_mb if report else 0)
        error.ran_s = billed_s
        raise error
    try:
        answer = json.loads(reply.payload)
    except (ValueError, RecursionError) as error:
        raise _raised(f"{target} answered {_shown(reply.payload)}, which is no JSON", billed_s) from error
    if not isinstance(answer, dict):
        raise _raised(f"{target} answered {_shown(reply.payload)}, which is no result", billed_s)
    return answer, report


def _raised(msg: str, ran_s: float) -> FunctionRaisedError:
    error = FunctionRaisedError(msg)
    error.ran_s = ran_s
    return error


def _shown(payload: bytes) -> str:
    return repr(payload[:120].decode(errors="replace"))
