"""Fixtures of the executors' tests: a real cache, and misbehaving functions that workers can import."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.fixtures.valkey import valkey

__all__ = ["valkey"]

ROOT = Path(__file__).resolve().parents[3]

# A function whose request id tells what it does; the warm event is answered as the real one does.
FUNCTIONS = """
import os, signal, sys, time
from superdl.super_wire.request import PrefetchRequest, PrefetchResult

WARM = {"super_warm": 1, "function_version": "0", "golden": "a" * 32, "cold_start": True}

def result(request):
    nothing = (0,) * len(request.keys)
    return PrefetchResult(request.request_id, "0", False, ("cached",) * len(request.keys), *(nothing,) *
    5).to_mapping()

def misbehaving(event, context):
    if "super_warm" in event:
        return WARM
    request = PrefetchRequest.from_mapping(event)
    does, _, rest = request.request_id.partition(":")
    if does == "exit":
        os._exit(int(rest))
    if does == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if does == "hang":
        open(rest, "w").close()
        while True:
            time.sleep(60)
    if does == "hang-in-c":  # holds the interpreter's lock, so that no thread of the worker can act
        open(rest, "w").close()
        import ctypes
        ctypes.PyDLL(None).sleep(60)
    if does == "raise":
        raise ValueError(rest)
    if does == "system-exit":
        sys.exit(7)
    if does == "nonsense":
        return {"what": 1}
    if does == "not-json":
        return {"what": object()}
    if does == "print":
        print("printed by the function", flush=True)
        os.write(1, b"written to standard output")
        print(sys.stdin.read())
    if does == "pid":
        return {**result(request), "messages": {"0": str(os.getpid())}}
    if does == "end":
        context.end_when_answered()
        return {**result(request), "messages": {"0": str(os.getpid())}}
    if does == "remaining":
        return {**result(request), "messages": {"0": str(context.get_remaining_time_in_millis())}}
    if does == "for-another":
        return {**result(request), "request_id": "another"}
    if does == "wait":
        while not os.path.exists(rest):
            time.sleep(0.005)
    return result(request)

def answering_twice(event, context):
    import __main__  # the worker: from now on it writes each answer twice
    if "super_warm" in event:
        serve = __main__._serve
        __main__._serve = lambda *arguments: serve(*arguments) * 2
    return misbehaving(event, context)

def answering_what_was_not_asked(event, context):
    import __main__
    __main__._serve = lambda *arguments: __main__.line_of({"call": 10**6, "result": {}})
    return WARM

def disagreeing(event, context):
    return {**WARM, "golden": f"{os.getpid():032x}"}

def without_fingerprint(event, context):
    return {}

def raises_when_warmed(event, context):
    raise RuntimeError("no warm welcome")
"""


@pytest.fixture
def functions(tmp_path, monkeypatch):
    """Makes the module ``functions_of_tests`` importable for workers; they find this checkout as well."""
    (tmp_path / "functions_of_tests.py").write_text(FUNCTIONS)
    path = os.pathsep.join([str(ROOT), str(tmp_path)])
    monkeypatch.setenv("PYTHONPATH", path)
    return "functions_of_tests"
