"""A coordinator that is told to end is gone in time, whatever a thread of it waits for."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap

import pytest

from tests.fixtures.stack import Stack

ENOUGH_S = 30.0

# The real coordinator, of which a thread that the interpreter waits for never comes back.
HANGING = """
import asyncio, sys, time
from superdl.coordinator.server import server
from superdl.coordinator.__main__ import main

start = server._start

async def start_and_hang(*arguments):
    running = await start(*arguments)
    asyncio.get_running_loop().run_in_executor(None, time.sleep, 600)
    return running

server._start, server._DRAIN_MAX_S = start_and_hang, 1.0
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_thread_that_hangs_does_not_keep_the_process(valkey):
    arguments = ("--listen", f"unix:{valkey.directory}/c.sock", "--cache", valkey.unix_url, "--slots", "1")
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(HANGING), *arguments], stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            assert any("serving on" in line for line in process.stderr)
            process.send_signal(signal.SIGTERM)
            _, log = process.communicate(timeout=ENOUGH_S)
        finally:
            process.kill()
    assert "Timeout (0:00:01)!" in log
    assert process.returncode == 1


def test_a_cache_that_hangs_does_not_keep_the_process():
    with Stack(arguments=("--slots", "1")) as stack:
        stack.valkey.process.send_signal(signal.SIGSTOP)
        try:
            stack.process.terminate()
            stack.process.communicate(timeout=ENOUGH_S)
        finally:
            stack.valkey.process.send_signal(signal.SIGCONT)
        assert stack.process.returncode == 0, stack.log.read_text()
        assert "the lock was not released and will expire" in stack.log.read_text()
