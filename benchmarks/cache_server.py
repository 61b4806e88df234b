"""An empty cache server for a benchmark that talks to it directly: one process on a unix socket.

Where its program is found is :mod:`superdl.sampler.embedded.cache_binary`'s.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from typing import TYPE_CHECKING

import redis

from benchmarks.errors import BenchmarkError
from superdl.sampler.embedded.cache_binary import server_binary

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["cache_server"]

_START_TIMEOUT_S = 20.0
_POLL_S = 0.01
_END_TIMEOUT_S = 10.0


@contextlib.contextmanager
def cache_server(directory: Path) -> Iterator[tuple[str, int]]:
    """Run a server in ``directory``; gives the path of its socket and its process id.

    Raises:
        EmbeddedError: there is no server to run.
        BenchmarkError: it does not answer.

    """
    path = directory / "cache.sock"
    options = {"port": "0", "unixsocket": str(path), "save": "", "dir": str(directory)}
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    process = subprocess.Popen([server_binary(), *words], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        _wait_until_it_answers(path, process)
        yield str(path), process.pid
    finally:
        process.terminate()
        try:
            process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_it_answers(path: Path, process: subprocess.Popen[bytes]) -> None:
    until_s = time.monotonic() + _START_TIMEOUT_S
    with redis.Redis(unix_socket_path=str(path)) as client:
        while time.monotonic() < until_s and process.poll() is None:
            with contextlib.suppress(redis.exceptions.ConnectionError):
                client.ping()
                return
            time.sleep(_POLL_S)
    raise BenchmarkError(f"the cache server does not answer at {path}")
