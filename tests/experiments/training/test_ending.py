"""When a rank is ended since another one failed, and when it is not yet: a real store, and a real process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from torch.distributed import TCPStore

from tests.fixtures.valkey import free_port

ROOT = Path(__file__).resolve().parents[3]

RANK_0 = """
import sys, threading
from superdl.experiments.training import ranks
ranks._LOOK_EVERY_S, ranks._GRACE_S = 0.05, 0.3
watch = ranks.FailureWatch(0)
watch.start()
with watch.writing():
    print("writes", flush=True)
    sys.stdin.readline()
    print("has written", flush=True)
threading.Event().wait()  # as in a collective: for ever
"""


@pytest.mark.timeout(60)
def test_a_rank_that_writes_is_not_cut_off_by_anothers_failure(monkeypatch):
    port = free_port()
    store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    process = subprocess.Popen(
        [sys.executable, "-c", RANK_0],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "PATH": "/usr/bin:/bin"},
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "writes\n"
        store.set("superdl/0/failure", "rank 1 failed: its reason")
        with pytest.raises(subprocess.TimeoutExpired):  # many times the grace
            process.wait(timeout=1.5)
        out, errors = process.communicate("written\n", timeout=30)
    finally:
        process.kill()
        process.communicate()
    assert (process.returncode, out) == (1, "has written\n")
    assert "rank 0 ends, since rank 1 failed: its reason" in errors
