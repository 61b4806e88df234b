"""What runs on a node of a Ray cluster: the function that it is told by name, as one task for each request.

A task first says that it has begun, so that the time it waited for CPUs is not taken for the function's; then
it says what the function answered. Both are bytes, the answer is JSON: no object of ours is ever pickled, nor
is an exception. It imports neither ray nor grpc nor torch. When tasks are made, and on which node, is
:mod:`superdl.coordinator.executors.ray_executor`'s.
"""

from __future__ import annotations

import faulthandler
import functools
import importlib
import json
import os
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["BEGUN", "RayContext", "run"]

BEGUN = b"begun"

_OVERTIME_S = 5.0
"""How much later than the executor a task that is over its time ends its process: that one may be gone."""

_STDERR = 2
# On Lambda the operator wants a line and a set of metrics per invocation; in a cluster's logs nobody does.
_DEFAULTS = {"SUPER_LOG_LEVEL": "WARNING", "POWERTOOLS_METRICS_DISABLED": "true"}


class RayContext:
    """What the function may ask of its invocation, named as AWS Lambda names it."""

    function_name = "super-prefetch-ray"
    function_version = "ray"
    invoked_function_arn = "arn:aws:lambda:ray:000000000000:function:super-prefetch-ray"
    memory_limit_in_mb = 0  # none of its own: nobody bills it

    def __init__(self, invocation: str, timeout_s: float) -> None:
        self.aws_request_id = invocation
        self._deadline = time.monotonic() + timeout_s
        self.ends = False

    def end_when_answered(self) -> None:
        """End this process soon: a thread in it cannot be ended else."""
        self.ends = True

    def get_remaining_time_in_millis(self) -> int:
        """Milliseconds until the executor ends this invocation."""
        return max(0, int((self._deadline - time.monotonic()) * 1000))


def run(function: str, event: bytes, invocation: str, timeout_s: float, decoders: int) -> Iterator[bytes]:
    """Say :data:`BEGUN`, then the answer: ``{"result": ...}``, or ``{"error": type, "message": words}``.

    Args:
        function: the function's import path, ``module:attribute``.
        event: the event as JSON.
        invocation: what this invocation is called in logs.
        timeout_s: how long it may take, from now on.
        decoders: how many images it decodes at once, unless the node's environment says so itself.
    """
    yield BEGUN
    # This watchdog is a thread of the C library: it ends a process that hangs in native code too.
    faulthandler.dump_traceback_later(timeout_s + _OVERTIME_S, exit=True, file=_STDERR)
    context = RayContext(invocation, timeout_s)
    try:
        for name, value in {**_DEFAULTS, "SUPER_DECODERS": str(decoders)}.items():
            os.environ.setdefault(name, value)
        answer = _encoded({"result": _load(function)(json.loads(event), context)})
    except Exception as error:  # noqa: BLE001  # whatever the function raises is its answer
        answer = _encoded({"error": type(error).__name__, "message": str(error)})
    finally:
        faulthandler.cancel_dump_traceback_later()
    if context.ends:  # once Ray has taken the answer; a task that begins here before that puts it off
        faulthandler.dump_traceback_later(_OVERTIME_S, exit=True, file=_STDERR)
    yield answer


def _encoded(answer: dict[str, Any]) -> bytes:
    return json.dumps(answer, separators=(",", ":")).encode()


@functools.cache
def _load(name: str) -> Callable[[dict[str, Any], Any], dict[str, Any]]:
    module, _, attribute = name.partition(":")
    handler: Callable[[dict[str, Any], Any], dict[str, Any]] = getattr(
        importlib.import_module(module), attribute
    )
    return handler
