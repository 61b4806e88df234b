"""What runs functions: a worker process of the local executor, or a task on a node of a Ray cluster.

``python -m superdl.coordinator.executors.worker module:attribute NICE`` reads requests from standard input
and writes answers to its standard output; what the function prints goes to standard error. It ends when its
input ends, even in the middle of a request: so no worker outlives the coordinator, however that dies. Each
message is a line of JSON; Ray's driver speaks so too. This module imports neither asyncio nor grpc, ray or
torch.
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
    from collections.abc import Callable, Iterator

__all__ = [
    "BEGUN",
    "FIRST_CALL",
    "MAX_MESSAGE_BYTES",
    "QUIET",
    "MessageError",
    "line_of",
    "main",
    "parse",
    "run_task",
    "take_standard_streams",
]

FIRST_CALL = 1
"""Number of the first call to a worker; what it says unasked, that it cannot serve, answers that one."""

BEGUN = b"begun"
"""What a task on Ray says first."""

MAX_MESSAGE_BYTES = 64 * 2**20

# On Lambda the operator wants a line and a set of metrics per invocation; on other machines nobody does.
QUIET = {"SUPER_LOG_LEVEL": "WARNING", "POWERTOOLS_METRICS_DISABLED": "true"}

_OVERTIME_S = 5.0
"""How much later than the executor a process that is over its time ends itself: the executor may be gone."""

_STDERR = 2


class MessageError(Exception):
    """The other side sent what is no message."""


def line_of(message: dict[str, Any]) -> bytes:
    """A message as it is sent."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def parse(line: bytes) -> dict[str, Any]:
    """The message in a line."""
    try:
        message = json.loads(line)
    except ValueError as error:
        raise MessageError(f"a message is JSON: {error}") from error
    if not isinstance(message, dict):
        raise MessageError(f"a message is a mapping; not {type(message).__name__}")
    return message


def take_standard_streams(output: int) -> tuple[BinaryIO, BinaryIO]:
    """Input and output for messages alone.

    From now on standard input is empty, and what is printed goes to the file descriptor ``output``.
    """
    messages_in = os.fdopen(os.dup(0), "rb")
    messages_out = os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(output, 1)
    return messages_in, messages_out


class InvocationContext:
    """What the function may ask of its invocation, named as AWS Lambda names it."""

    memory_limit_in_mb = 0  # none of its own: nobody bills it

    def __init__(self, executor: str, invocation: str, timeout_s: float) -> None:
        self.function_name = f"super-prefetch-{executor}"
        self.function_version = executor
        self.invoked_function_arn = f"arn:aws:lambda:{executor}:000000000000:function:{self.function_name}"
        self.aws_request_id = invocation
        self._deadline = time.monotonic() + timeout_s
        self.ends = False

    def end_when_answered(self) -> None:
        """End this process once the answer is taken: a thread in it cannot be ended else."""
        self.ends = True

    def get_remaining_time_in_millis(self) -> int:
        """Milliseconds until the executor ends this invocation."""
        return max(0, int((self._deadline - time.monotonic()) * 1000))


def run_task(
    function: str, event: bytes, invocation: str, timeout_s: float, decoders: int
) -> Iterator[bytes]:
    """One request as a task on Ray: say :data:`BEGUN`, then the answer, a line of JSON.

    So the time that it waited for CPUs is not taken for the function's. No object of ours is ever pickled,
    nor is an exception. It decodes ``decoders`` images at once, unless the node's environment says otherwise.
    """
    yield BEGUN
    for name, value in {**QUIET, "SUPER_DECODERS": str(decoders)}.items():
        os.environ.setdefault(name, value)
    context = InvocationContext("ray", invocation, timeout_s)
    answer = _invoke(function, json.loads(event), context, timeout_s, line_of)
    if context.ends:  # once Ray has taken the answer; a task that begins here before that puts it off
        faulthandler.dump_traceback_later(_OVERTIME_S, exit=True, file=_STDERR)
    yield answer


def main(arguments: list[str]) -> int:
    """Serve until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the coordinator's to answer
    requests_in, answers_out = take_standard_streams(_STDERR)
    try:
        _load(arguments[0])
    except Exception as error:  # noqa: BLE001  # whatever an import may raise is the answer to the first request
        words = {"error": type(error).__name__, "message": f"{arguments[0]}: {error}"}
        answers_out.write(line_of({"call": FIRST_CALL, **words}))
        answers_out.flush()
        return 1
    requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()  # the executor sends one at a time
    reader = threading.Thread(target=_read, args=(requests_in, requests), name="super-requests", daemon=True)
    reader.start()
    niceness = int(arguments[1])
    while True:
        answer = _serve(arguments[0], requests.get())
        os.nice(niceness)  # once it can serve: on a busy host it would hardly get there with less
        niceness = 0
        answers_out.write(answer)
        answers_out.flush()


def _read(requests_in: BinaryIO, requests: queue.SimpleQueue[dict[str, Any]]) -> None:
    """Hand requests over; end the process at once when there will be no more."""
    try:
        for line in requests_in:
            requests.put(parse(line))
    except (MessageError, OSError) as error:
        print(f"super worker {os.getpid()}: {error}", file=sys.stderr)  # noqa: T201  # no logger is set up in a worker
        os._exit(1)
    # Not sys.exit: the function may be busy for long, and nobody waits for its answer any more.
    os._exit(0)


def _serve(function: str, message: dict[str, Any]) -> bytes:
    """The answer to one call, whose number it repeats: so it is never taken for the next one's."""
    call, timeout_s = message["call"], message["timeout_s"]
    context = InvocationContext("local", f"local-{os.getpid()}-{call}", timeout_s)

    def encoded(answer: dict[str, Any]) -> bytes:
        return line_of({"call": call, **answer, "ends": context.ends})

    return _invoke(function, message["event"], context, timeout_s, encoded)


def _invoke(
    function: str,
    event: dict[str, Any],
    context: InvocationContext,
    timeout_s: float,
    encode: Callable[[dict[str, Any]], bytes],
) -> bytes:
    """The function's result, or type and words of what it raised, encoded."""
    # This watchdog is a thread of the C library: it ends a process that hangs in native code too.
    faulthandler.dump_traceback_later(timeout_s + _OVERTIME_S, exit=True, file=_STDERR)
    try:
        return encode({"result": _load(function)(event, context)})
    except Exception as error:  # noqa: BLE001  # whatever the function raises is its answer
        return encode({"error": type(error).__name__, "message": str(error)})
    finally:
        faulthandler.cancel_dump_traceback_later()


@functools.cache
def _load(name: str) -> Callable[[dict[str, Any], Any], dict[str, Any]]:
    module, _, attribute = name.partition(":")
    handler: Callable[[dict[str, Any], Any], dict[str, Any]] = getattr(
        importlib.import_module(module), attribute
    )
    return handler


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
