"""A worker's slots, processes that run one request at a time without asyncio or gRPC.

``python -m superdl.lambda_prefetch.worker.slot [MODULE ...]`` imports the modules. Standard input is a Unix
socket. For each descriptor received there, the process forks a slot and writes the slot's process id.

The descriptor is the slot's socket. A slot reads a line of JSON with its ``function`` (module:attribute),
niceness ``nice`` and ``environment``, then one request per line as ``NUMBER TIMEOUT_S JSON``. It writes one
reply per line as ``NUMBER KIND JSON``. The kind is ``result`` or ``raised``, with ``!`` appended if the
process must be ended.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import gc
import importlib
import json
import os
import queue
import signal
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, BinaryIO

from superdl.super_wire.forked_process import set_process_name

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_LINE_BYTES = 64 * 2**20
# Kinds of reply, and a mark if the process must be ended. The worker does not parse the JSON.
RESULT, RAISED, ENDS = b"result", b"raised", b"!"

_OVERTIME_S = 5.0  # time for the worker to end an overdue process, before the process exits itself
_STDERR = 2


class InvocationContext:
    """The context of an invocation, with the attribute names that AWS Lambda uses."""

    function_name = "super-prefetch-worker"

    def __init__(self, request_id: str, timeout_s: float) -> None:
        self.aws_request_id = request_id
        self.ends = False
        self._deadline_s = time.monotonic() + timeout_s

    def end_when_answered(self) -> None:
        """End this process after the reply."""
        # There is no other way to end a thread that hangs.
        self.ends = True

    def get_remaining_time_in_millis(self) -> int:
        """Return the number of milliseconds until the worker ends this process."""
        return max(0, int((self._deadline_s - time.monotonic()) * 1000))


def main(modules: list[str]) -> int:
    """Fork slots until the input ends."""
    set_process_name("superdl-slot")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the worker handles Ctrl-C and SIGTERM
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # waitpid() needs it
    worker = _take_standard_streams()
    for module in modules:
        with contextlib.suppress(Exception):  # slots report the error
            importlib.import_module(module)  # noqa: TID251  # SUPER's function
    gc.freeze()  # otherwise, collections in slots would copy shared memory
    while True:
        _, descriptors, _, _ = socket.recv_fds(worker, 1, 1, socket.MSG_CMSG_CLOEXEC)
        if not descriptors:
            return 0
        with socket.socket(fileno=descriptors[0]) as requests:
            parent = os.fork()
            if not parent:
                slot = os.fork()
                if not slot:
                    worker.close()
                    return _serve(requests)
                worker.sendall(b"%d" % slot)
                os._exit(0)
            # The worker adopts the slot, which is now an orphan.
            os.waitpid(parent, 0)
        worker.sendall(b"\n")


def _serve(connection: socket.socket) -> int:
    requests_in, replies_out = connection.makefile("rb"), connection.makefile("wb")
    line = requests_in.readline()
    if not line:
        return 0
    start = json.loads(line)
    os.environ.clear()
    os.environ.update(start["environment"])
    name, niceness = start["function"], start["nice"]
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(requests_in, requests), name="super-requests", daemon=True).start()
    while True:
        number, timeout_s, event = requests.get().split(b" ", 2)
        kind, reply = _invoke(name, event, f"worker-{os.getpid()}-{int(number)}", float(timeout_s))
        os.nice(niceness)  # after the first request, because on a busy host the slot would hardly start
        niceness = 0
        replies_out.write(b" ".join((number, kind, reply)) + b"\n")
        replies_out.flush()


def _take_standard_streams() -> socket.socket:
    """Take over the socket on standard input, and redirect standard output to standard error."""
    worker = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(_STDERR, 1)
    return worker


def _read(requests_in: BinaryIO, requests: queue.SimpleQueue[bytes]) -> None:
    """Queue requests. End the process as soon as the input ends."""
    with contextlib.suppress(OSError):  # a worker that was killed with unread replies resets the connection
        for line in requests_in:
            requests.put(line)
    os._exit(0)  # unlike sys.exit, does not wait for the function, whose result is lost


@functools.cache
def _load(name: str) -> Callable[[dict[str, Any], Any], dict[str, Any]]:
    path, _, attribute = name.partition(":")
    module = importlib.import_module(path)  # noqa: TID251  # named by the worker's operator
    function: Callable[[dict[str, Any], Any], dict[str, Any]] = getattr(module, attribute)
    return function


def _invoke(name: str, event: bytes, request_id: str, timeout_s: float) -> tuple[bytes, bytes]:
    """Call the function. Return the kind of reply, and the result or error as JSON."""
    context = InvocationContext(request_id, timeout_s)
    # This watchdog is a native thread, so it also ends a process that hangs in native code.
    faulthandler.dump_traceback_later(timeout_s + _OVERTIME_S, exit=True, file=_STDERR)
    try:
        kind, reply = RESULT, json.dumps(_load(name)(json.loads(event), context), separators=(",", ":"))
    except Exception as error:  # noqa: BLE001  # reported to the worker
        kind, reply = RAISED, json.dumps({"error": type(error).__name__, "message": str(error)})
    finally:
        faulthandler.cancel_dump_traceback_later()
    return kind + ENDS * context.ends, reply.encode()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
