"""What a function on a node answers, read and held to what the coordinator is. It comes over a network."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, replace
from typing import Any

from superdl.coordinator.executors.base import ExecutorError, FunctionRaisedError
from superdl.coordinator.executors.strange_words import one_line
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.request import PrefetchResult
from superdl.super_wire.version import installed_version

__all__ = ["Warmed", "read_result", "read_warmed"]

_DIGEST = re.compile(r"[0-9a-f]{32}")
_SHOWN = 200
_MAX_KIND = 80
_MAX_WORDS = 600


@dataclass(frozen=True, slots=True)
class Warmed:
    """What a function told when it was warmed: its golden digest, and the node's clock or 0."""

    golden: str
    clock_s: float = 0.0


def read_warmed(text: str) -> Warmed:
    """The answer to a warm event.

    Raises:
        ExecutorError: the function failed, or is no function of this version of SUPER.
    """
    answer = _answer(text)
    version, golden = answer.get("function_version"), answer.get("golden")
    if not isinstance(version, str) or not isinstance(golden, str) or not _DIGEST.fullmatch(golden):
        raise ExecutorError(f"it answered a warm event with {_shown(text)}: install SUPER there")
    if version != installed_version():
        raise ExecutorError(
            f"SUPER {version[:80]} is installed there, the coordinator is SUPER {installed_version()}: "
            f"install {installed_version()} there, and start its Ray workers anew"
        )
    clock_s = answer.get("clock_s")
    if not isinstance(clock_s, float) or not math.isfinite(clock_s):
        clock_s = 0.0
    return Warmed(golden, clock_s)


def read_result(text: str, request_id: str) -> PrefetchResult:
    """The answer to a prefetch request.

    Raises:
        FunctionRaisedError: the function raised, or answered what is no result of this request.
    """
    try:
        result = PrefetchResult.from_mapping(_answer(text))
    except ConfigError as error:
        raise FunctionRaisedError(f"it answered what is no prefetch result: {error}") from error
    if result.request_id != request_id:
        raise FunctionRaisedError(
            f"it was asked for request {request_id} and answered for {result.request_id[:80]!r}"
        )
    samples, messages = len(result.outcomes), result.messages
    if len(messages) > samples:
        raise FunctionRaisedError(f"it answered {len(messages)} messages for {samples} samples")
    return replace(result, messages={place: one_line(words, _MAX_WORDS) for place, words in messages.items()})


def _answer(text: str) -> dict[str, Any]:
    """The result in an answer of :func:`superdl.coordinator.executors.ray_task.run`."""
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FunctionRaisedError(f"it answered {_shown(text)}, which is no JSON") from error
    if isinstance(answer, dict) and isinstance(answer.get("error"), str):
        kind, words = (
            one_line(answer["error"], _MAX_KIND),
            one_line(str(answer.get("message", "")), _MAX_WORDS),
        )
        raise FunctionRaisedError(f"the function raised {kind}: {words}")
    if not isinstance(answer, dict) or not isinstance(answer.get("result"), dict):
        raise FunctionRaisedError(f"it answered {_shown(text)}, which is no result")
    result: dict[str, Any] = answer["result"]
    return result


def _shown(text: str) -> str:
    return repr(text[:_SHOWN])
