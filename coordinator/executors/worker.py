"""A worker process of the local executor: runs the function that it is told by name, one request at a time.

``python -m superdl.coordinator.executors.worker module:attribute`` reads requests from its standard input and
writes answers to its standard output; what the function prints goes to standard error. It ends when its input
ends, even in the middle of a request: so no worker outlives the coordinator, however that dies. It imports
neither grpc nor torch.
"""

from __future__ import annotations

import faulthandler
import importlib
import os
import queue
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, BinaryIO

from superdl.coordinator.executors.framing import (
    FIRST_CALL,
    LENGTH_BYTES,
    FramingError,
    body_length,
    frame,
    parse,
)

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["main"]

_OVERTIME_S = 5.0
"""How much later than the executor a worker that is over its time ends itself: the executor may be gone."""


class LocalContext:
    """What the function may ask of its invocation, named as AWS Lambda names it."""

    function_name = "super-prefetch-local"
    function_version = "local"
    invoked_function_arn = "arn:aws:lambda:local:000000000000:function:super-prefetch-local"
    memory_limit_in_mb = 0  # none of its own: nobody bills it

    def __init__(self, invocation: int, timeout_s: float) -> None:
        self.aws_request_id = f"local-{os.getpid()}-{invocation}"
        self._deadline = time.monotonic() + timeout_s
        self.ends = False

    def end_when_answered(self) -> None:
        """Have the executor end this process once it has the answer: a thread in it cannot be ended else."""
        self.ends = True

    def get_remaining_time_in_millis(self) -> int:
        """Milliseconds until the executor ends this invocation."""
        return max(0, int((self._deadline - time.monotonic()) * 1000))


def main(arguments: list[str]) -> int:
    """Serve until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the coordinator's to answer
    requests_in, answers_out = _take_standard_streams()
    try:
        handler = _load(arguments[0])
    except Exception as error:  # noqa: BLE001  # whatever an import may raise is the answer to the first request
        words = {"error": type(error).__name__, "message": f"{arguments[0]}: {error}"}
        answers_out.write(frame({"call": FIRST_CALL, **words}))
        answers_out.flush()
        return 1
    requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()  # the executor sends one at a time
    reader = threading.Thread(target=_read, args=(requests_in, requests), name="super-requests", daemon=True)
    reader.start()
    while True:
        message = requests.get()
        answers_out.write(_invoke(handler, message["event"], message["call"], message["timeout_s"]))
        answers_out.flush()


def _take_standard_streams() -> tuple[BinaryIO, BinaryIO]:
    """Input and output for messages alone.

    What the function reads is empty, what it prints goes to standard error.
    """
    requests_in = os.fdopen(os.dup(0), "rb")
    answers_out = os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return requests_in, answers_out


def _load(name: str) -> Callable[[dict[str, Any], Any], dict[str, Any]]:
    module, _, attribute = name.partition(":")
    handler: Callable[[dict[str, Any], Any], dict[str, Any]] = getattr(
        importlib.import_module(module), attribute
    )
    return handler


def _read(requests_in: BinaryIO, requests: queue.SimpleQueue[dict[str, Any]]) -> None:
    """Hand requests over; end the process at once when there will be no more."""
    try:
        while prefix := requests_in.read(LENGTH_BYTES):
            requests.put(parse(requests_in.read(body_length(prefix))))
    except (FramingError, OSError) as error:
        print(f"super worker {os.getpid()}: {error}", file=sys.stderr)  # noqa: T201  # no logger is set up in a worker
        os._exit(1)
    # Not sys.exit: the function may be busy for long, and nobody waits for its answer any more.
    os._exit(0)


def _invoke(
    handler: Callable[[dict[str, Any], Any], dict[str, Any]],
    event: dict[str, Any],
    call: int,
    timeout_s: float,
) -> bytes:
    """The framed answer: the function's result, or type and words of what it raised."""
    # This watchdog is a thread of the C library: it ends a worker that hangs in native code too.
    faulthandler.dump_traceback_later(timeout_s + _OVERTIME_S, exit=True)
    context = LocalContext(call, timeout_s)
    try:
        result = handler(event, context)
        return frame({"call": call, "result": result, "ends": context.ends})
    except Exception as error:  # noqa: BLE001  # whatever the function raises is its answer
        return frame({"call": call, "error": type(error).__name__, "message": str(error)})
    finally:
        faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
