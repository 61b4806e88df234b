"""A worker's slot: a process that runs one request at a time, without asyncio and gRPC.

``python -m superdl.lambda_prefetch.worker.slot module:attribute NICE`` reads one request
per line, ``NUMBER TIMEOUT_S JSON``, and writes one answer per line, ``NUMBER KIND JSON``.
The kind is ``result`` or ``raised``, followed by ``!`` if the process must be ended.
"""

from __future__ import annotations

import faulthandler
import functools
import importlib
import json
import os
import queue
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_LINE_BYTES = 64 * 2**20
# Kinds of answer, and a mark if the process must end. The worker passes the JSON on without parsing it.
RESULT, RAISED, ENDS = b"result", b"raised", b"!"

_OVERTIME_S = 5.0  # after which a process over its time ends itself, if its worker has not
_STDERR = 2


class InvocationContext:
    """The invocation's context, with the names that AWS Lambda uses."""

    memory_limit_in_mb = 0  # only billing needs it
    function_name = "super-prefetch-worker"
    function_version = "worker"
    invoked_function_arn = "arn:aws:lambda:worker:000000000000:function:super-prefetch-worker"

    def __init__(self, request_id: str, timeout_s: float) -> None:
        self.aws_request_id = request_id
        self.ends = False
        self._deadline_s = time.monotonic() + timeout_s

    def end_when_answered(self) -> None:
        """End this process after the answer."""
        # There is no other way to end a thread that hangs.
        self.ends = True

    def get_remaining_time_in_millis(self) -> int:
        """Return the milliseconds until the worker ends this process."""
        return max(0, int((self._deadline_s - time.monotonic()) * 1000))


def main(arguments: list[str]) -> int:
    """Serve requests until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the worker handles Ctrl-C and SIGTERM
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    name, niceness = arguments[0], int(arguments[1])
    requests_in, answers_out = _take_standard_streams()
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(requests_in, requests), name="super-requests", daemon=True).start()
    while True:
        number, timeout_s, event = requests.get().split(b" ", 2)
        kind, answer = _invoke(name, event, f"worker-{os.getpid()}-{int(number)}", float(timeout_s))
        os.nice(niceness)  # not earlier: on a busy host it would hardly start
        niceness = 0
        answers_out.write(b" ".join((number, kind, answer)) + b"\n")
        answers_out.flush()


def _take_standard_streams() -> tuple[BinaryIO, BinaryIO]:
    """Reserve input and output for requests and answers. Redirect prints to standard error."""
    requests_in, answers_out = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(_STDERR, 1)
    return requests_in, answers_out


def _read(requests_in: BinaryIO, requests: queue.SimpleQueue[bytes]) -> None:
    """Queue requests. End the process as soon as the input ends."""
    for line in requests_in:
        requests.put(line)
    os._exit(0)  # not sys.exit: the function may run for long, and its answer is lost


@functools.cache
def _load(name: str) -> Callable[[dict[str, Any], Any], dict[str, Any]]:
    path, _, attribute = name.partition(":")
    module = importlib.import_module(path)  # noqa: TID251  # named by the worker's operator
    function: Callable[[dict[str, Any], Any], dict[str, Any]] = getattr(module, attribute)
    return function


def _invoke(name: str, event: bytes, request_id: str, timeout_s: float) -> tuple[bytes, bytes]:
    """Return the kind of answer, and the function's result or error as JSON."""
    context = InvocationContext(request_id, timeout_s)
    # This watchdog is a native thread: it also ends a process that hangs in native code.
    faulthandler.dump_traceback_later(timeout_s + _OVERTIME_S, exit=True, file=_STDERR)
    try:
        kind, answer = RESULT, json.dumps(_load(name)(json.loads(event), context), separators=(",", ":"))
    except Exception as error:  # noqa: BLE001  # an error of the function is its answer
        kind, answer = RAISED, json.dumps({"error": type(error).__name__, "message": str(error)})
    finally:
        faulthandler.cancel_dump_traceback_later()
    return kind + ENDS * context.ends, answer.encode()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
