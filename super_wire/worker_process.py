"""The coordinator's own worker process, which loads its modules before it receives its arguments."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING

from superdl.super_wire.forked_process import ForkedProcess

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MODULE = "superdl.lambda_prefetch.worker"
# Prefixes of variables for clients of a coordinator. This worker does not need them.
_NOT_PASSED_ON = ("SUPER_TOKEN", "SUPER_COORDINATOR")


class WorkerProcess:
    """A worker that loads its modules and waits for :meth:`begin`. It exits when this process does.

    Process listings show ``place``. If ``forks``, the worker is a fork of this process, which must not have
    started any threads. Raises ``OSError`` if the worker cannot be started.
    """

    def __init__(self, place: str, *, forks: bool = False) -> None:
        arguments = ["--standby", place]
        self._process: subprocess.Popen[bytes] | ForkedProcess
        reads, writes = os.pipe()
        self._stdin = os.fdopen(writes, "wb")
        try:
            if forks:
                self._process = ForkedProcess(partial(_work, arguments), reads)
            else:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", _MODULE, *arguments],
                    stdin=reads,
                    env=_own_environment(),
                    # Ctrl-C at the terminal is meant for the trainer.
                    process_group=0,
                )
        except OSError:
            self._stdin.close()
            raise
        finally:
            os.close(reads)

    @property
    def is_waiting(self) -> bool:
        """Whether the process is running and waiting for :meth:`begin`."""
        return not self._stdin.closed and self._process.poll() is None

    def begin(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        """Run the worker with these arguments and this process's environment plus these variables.

        Blocks while the pipe to the worker is full.
        """
        message = {"arguments": arguments, "environment": _own_environment() | dict(environment)}
        # If the worker has ended, its exit code says more.
        with contextlib.suppress(BrokenPipeError), self._stdin as stdin:
            stdin.write(json.dumps(message).encode() + b"\n")

    async def ended(self) -> int:
        """Wait for the process to exit, and return its exit code, which is negative for a signal."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        descriptor = os.pidfd_open(self._process.pid)
        loop.add_reader(descriptor, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
        self._stdin.close()
        return self._process.wait() or 0

    def terminate(self) -> None:
        """Stop the worker and its slots."""
        self._process.terminate()

    def kill(self) -> None:
        """Kill the worker. Its slots detect this and exit."""
        self._process.kill()


def _work(arguments: list[str]) -> int:
    code: int = importlib.import_module(f"{_MODULE}.__main__").main(arguments)  # noqa: TID251  # a constant
    return code


def _own_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(_NOT_PASSED_ON)}
