"""A rank that hangs is ended since another one failed: a real store, and a real process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from torch.distributed import TCPStore

from tests.fixtures.ports import free_port

ROOT = Path(__file__).resolve().parents[3]

RANK_0 = """
import threading
from superdl.experiments.training import ranks
ranks._LOOK_EVERY_S, ranks._GRACE_S = 0.05, 0.3
watch = ranks.FailureWatch(0)
watch.start()
print("waits", flush=True)
threading.Event().wait()  # as in a collective: for ever
"""


@pytest.mark.timeout(60)
def test_a_rank_that_hangs_is_ended_by_anothers_failure():
    port = free_port()
    store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    process = subprocess.Popen(
        [sys.executable, "-c", RANK_0],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "PATH": "/usr/bin:/bin"},
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "waits\n"
        store.set("superdl/0/failure", "rank 1 failed: its reason")
        _, errors = process.communicate(timeout=50)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 1
    assert "rank 0 ends, since rank 1 failed: its reason" in errors
