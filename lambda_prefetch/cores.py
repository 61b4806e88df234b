"""How many threads decode: as many as the function has cores of its own.

AWS Lambda gives a function CPU time by its memory, and more than one core from 1,769 MB on. Everywhere else
one function decodes with one thread, since executors run a function for each core there.
"""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["LAMBDA_MB_PER_CORE", "decoding_threads"]

LAMBDA_MB_PER_CORE = 1769
"""Memory in MB at which Lambda gives a function one whole core, as its documentation says."""


def decoding_threads(setting: int, environment: Mapping[str, str] | None = None) -> int:
    """How many threads decode: ``setting``, or if that is 0 what the module's first lines say."""
    if setting:
        return setting
    variables = os.environ if environment is None else environment
    memory_mb = variables.get("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "")
    if not memory_mb.isdecimal():
        return 1
    return max(1, min(_cores(), math.ceil(int(memory_mb) / LAMBDA_MB_PER_CORE)))


def _cores() -> int:
    """Cores that this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return os.cpu_count() or 1
