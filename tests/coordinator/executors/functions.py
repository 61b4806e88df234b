"""Functions for the tests' slots and Lambda service. The id of a request says what they do."""

import ctypes
import os
import resource
import signal
import sys
import time
from pathlib import Path

from superdl.super_wire.protocol import installed_version
from superdl.super_wire.request import PrefetchRequest, PrefetchResult

FINGERPRINT = "a" * 32
MODULE = __name__


def warmed(**changes):
    return {"super_warm": 1, "function_version": installed_version(), "golden": FINGERPRINT, **changes}


def result(request):
    outcomes, sizes = ("cached",) * len(request.keys), (0,) * len(request.keys)
    version = installed_version()
    return PrefetchResult(request.request_id, version, False, outcomes, sizes, duration_us=1500).to_mapping()


def telling(request, told):
    return {**result(request), "messages": {"0": str(told)}}


def _hang(rest, _context):
    if rest:
        Path(rest).touch()
    while True:
        time.sleep(60)


def _hang_in_c(rest, _context):
    """Hang while holding the GIL, so that no thread of the worker can run."""
    Path(rest).touch()
    ctypes.PyDLL(None).sleep(60)


def _kill(_rest, _context):
    os.kill(os.getpid(), signal.SIGKILL)


def _raise(rest, _context):
    raise ValueError(rest * 100_000 if rest == "many words " else rest)


def _print_all_over(_rest, _context):
    sys.stdout.write("printed by the function\n")
    sys.stdout.flush()
    os.write(1, b"written to standard output")
    sys.stdin.read()


def _wait(rest, _context):
    while not Path(rest).exists():
        time.sleep(0.005)


_DOES = {
    "end": lambda _rest, context: context.end_when_answered(),
    "exit": lambda rest, _context: os._exit(int(rest)),
    "hang": _hang,
    "hang-in-c": _hang_in_c,
    "kill": _kill,
    "print": _print_all_over,
    "raise": _raise,
    "system-exit": lambda _rest, _context: sys.exit(7),
    "wait": _wait,
}
_ANSWERS = {
    "end": lambda request: telling(request, os.getpid()),
    "for-another": lambda request: {**result(request), "request_id": "another"},
    "list": lambda _request: [1],
    "nonsense": lambda _request: {"what": 1},
    "not-json": lambda _request: {"what": object()},
    "pid": lambda request: telling(request, os.getpid()),
    "too-much": lambda _request: "x" * (7 * 2**20),
}


def misbehaving(event, context):
    """Do what the request's id says, or answer normally if it names no misbehaviour."""
    if "super_warm" in event:
        return warmed()
    request = PrefetchRequest.from_mapping(event)
    word, _, rest = request.request_id.partition(":")
    if word in _DOES:
        _DOES[word](rest, context)
    return _ANSWERS.get(word, result)(request)


def of_another_version(event, _context):
    return warmed(function_version="9.9.9")


def of_no_version(event, _context):
    return {"statusCode": 200, "body": "hello"}


def answering_twice(event, context):
    if "super_warm" in event:  # from now on its slot writes each answer twice
        _write_also(lambda number, kind, answer: b" ".join((number, kind, answer)))
    return misbehaving(event, context)


def answering_what_was_not_asked(event, context):
    if "super_warm" in event:
        _write_also(lambda *_: b"1000000 result {}")
    return misbehaving(event, context)


def _write_also(line):
    """Have the slot that runs this write an extra line after each answer."""
    slot = sys.modules["__main__"]
    invoke = slot._invoke

    def twice(name, event, request_id, timeout_s):
        kind, answer = invoke(name, event, request_id, timeout_s)
        return kind, answer + b"\n" + line(request_id.rpartition("-")[2].encode(), kind, answer)

    slot._invoke = twice


def without_fingerprint(_event, _context):
    return {}


def raises_when_warmed(_event, _context):
    raise RuntimeError("no warm welcome")


def gathering(event, _context):
    """Answer a warm-up only once as many environments exist as the test expects."""
    directory, wanted = Path(os.environ["GATHER_IN"]), int(os.environ["GATHER"])
    (directory / str(os.getpid())).touch()
    while len(list(directory.iterdir())) < wanted:
        time.sleep(0.005)
    return warmed()


def disagreeing(event, context):
    """Decode differently in each process. On Lambda, wait until all environments exist."""
    answer = gathering(event, context) if "GATHER" in os.environ else warmed()
    return {**answer, "golden": f"{os.getpid():032x}"}


def of_another_decoder(event, context):
    """Run the real function, but claim to decode differently from others."""
    from superdl.lambda_prefetch import handler

    answer = handler.handler(event, context)
    return {**answer, "golden": FINGERPRINT} if "super_warm" in event else answer


def out_of_memory_once(event, context):
    """Run the real function, but use up its memory on the first request on this host."""
    from superdl.lambda_prefetch import handler

    marker = Path(os.environ["OUT_OF_MEMORY"])
    if "super_warm" not in event and not marker.exists():
        marker.touch()
        resource.setrlimit(resource.RLIMIT_AS, (2**32, 2**32))
        taken = []
        try:
            while True:
                taken.append(bytes(2**26))
        except MemoryError:  # with a cgroup, the kernel kills the process instead
            os.kill(os.getpid(), signal.SIGKILL)
    return handler.handler(event, context)
