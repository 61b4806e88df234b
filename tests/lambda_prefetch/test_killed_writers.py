"""A function that is killed at any step of writing a pack leaves no part of one."""

from dataclasses import replace
from pathlib import Path

import pytest

from superdl.super_wire.request import RequestKind
from tests.lambda_prefetch.prefetching import run
from tests.lambda_prefetch.test_store import GOOD, KINDS, assert_whole, files_of, images_in, program, saving

_KILLED = """
import glob, json, os, signal, sys, threading
from tests.lambda_prefetch.prefetching import Context
from superdl.lambda_prefetch.handler import handler

WATCHED = ("/super_wire/store/", "/lambda_prefetch/store.py", "/lambda_prefetch/transfers.py")
event, every, packs = json.loads(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
handler({"super_warm": 1, "cache": ""}, Context())
last = 0

def produce():
    steps = 0
    def trace(frame, what, _):
        nonlocal steps
        if any(part in frame.f_code.co_filename for part in WATCHED):
            steps += what == "line"
            if steps == last:
                os.kill(os.getpid(), signal.SIGKILL)
            return trace
    threading.settrace(trace)
    sys.settrace(trace)
    os._exit(0 if handler(event, Context())["pack"] else 1)

ended = -signal.SIGKILL
while ended == -signal.SIGKILL:
    last += every
    child = os.fork()
    if child == 0:
        produce()
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(json.dumps({"step": last, "ended": ended, "packs": len(glob.glob(packs + "/*"))}), flush=True)
"""


@pytest.mark.parametrize("kind", [*KINDS, RequestKind.SAVE])
@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 5])
def test_no_part_of_a_pack_stays(tmp_path, valkey, directory_store, every, kind):
    """A process is killed before a line of the store's code that it runs, the next before a later one, ..."""
    request = saving(images_in(tmp_path / "images"), valkey, directory_store, GOOD[1:3], kind=kind)
    if kind is RequestKind.SAVE:
        run(replace(request, store="", kind=RequestKind.DECODE))
        request = replace(request, golden="f" * 32)
    folder = Path(directory_store.address)
    tried = program(_KILLED, request.to_json(), str(every), str(folder / "packs"))
    killed, done = tried[:-1], tried[-1]
    assert done["ended"] == 0
    assert len(killed) * every > 100
    before = [step["packs"] for step in killed]
    assert before[0] == 0
    assert before == sorted(before)  # none was changed or removed
    # Only where a pack was whole did it stay, and those kills were the last.
    first_whole = before.index(1) if 1 in before else len(before)
    assert first_whole > len(killed) // 2
    assert len(files_of(folder / "tmp")) > len(killed) // 4  # killed in the midst of writing; swept one day
    assert len(directory_store.packs()) == done["packs"]
    for name in directory_store.packs():
        assert len(assert_whole(directory_store, name).entries) == 2
