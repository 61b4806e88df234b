"""What AWS Lambda reports of an invocation: how long it ran, what of that is billed, how much memory it has.

The report is the last line of the log that an answer carries: text, or JSON where the function logs JSON.
"""

from __future__ import annotations

import json
import math
import re
from base64 import b64decode
from dataclasses import dataclass
from typing import Any

__all__ = ["Report", "read_report"]

_BILLED = re.compile(r"\tBilled Duration: (\d{1,9}) ms")
_MEMORY = re.compile(r"\tMemory Size: (\d{1,6}) MB")
_USED = re.compile(r"\tMax Memory Used: (\d{1,6}) MB")
_INIT = re.compile(r"\t(?:Init|Restore) Duration: (\d{1,9}(?:\.\d{1,6})?) ms")
_NUMBER_MAX = 10**9


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
