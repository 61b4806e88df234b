"""Services whose cache is reached by TLS: a cache server behind a TLS front, with a certificate made for the
occasion, and a coordinator of its own.

The embedded default has a unix socket, which needs no TLS; so here all are started one by one. The key lives
as long as the services, in a directory of this user's.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.cache_server import cache_server
from benchmarks.errors import BenchmarkError
from benchmarks.services import Services
from superdl.sampler.embedded.host import cache_bytes, pool_workers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["TlsCache", "tls_cache", "tls_services"]

_START_TIMEOUT_S = 30.0
_POLL_S = 0.02
_END_TIMEOUT_S = 15.0
_ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class TlsCache:
    """A cache: its address, the server's process id, and what its clients need in their environment."""

    address: str
    pid: int
    environment: Mapping[str, str]


@contextlib.contextmanager
def tls_services() -> Iterator[Services]:
    """Run a cache, a coordinator and functions; gives them with the environment that their clients need.

    Raises:
        EmbeddedError: there is no cache server to run.
        BenchmarkError: there is no openssl, or one of the processes does not answer.

    """
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="superdl-tls-")))
        cache = stack.enter_context(tls_cache(directory))
        path, log = directory / "coordinator.sock", directory / "coordinator.log"
        command = [sys.executable, "-P", "-m", "superdl.coordinator", "--listen", f"unix:{path}"]
        command += ["--cache", cache.address, "--cache-bytes", str(cache_bytes())]
        command += ["--workers", str(pool_workers())]
        environment = {**os.environ, **cache.environment}
        with log.open("wb") as said:
            process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=said, stderr=said
            )
        stack.callback(_end, process)
        _wait_until_it_listens(path, process, log)
        yield Services(f"unix:{path}", process.pid, cache.pid, cache.environment)


@contextlib.contextmanager
def tls_cache(directory: Path) -> Iterator[TlsCache]:
    """Run an empty cache server and a front that speaks TLS for it; its files lie in ``directory``.

    Raises:
        EmbeddedError: there is no server to run.
        BenchmarkError: there is no openssl, or one of them does not answer.

    """
    certificate, key = _make_certificate(directory)
    with cache_server(directory) as (path, pid):
        command = [sys.executable, "-m", "benchmarks.tls_front", path, str(certificate), str(key)]
        front = subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        try:
            port = front.stdout.readline().strip().decode() if front.stdout is not None else ""
            if not port:
                raise BenchmarkError("the TLS front ended as it started")
            environment = {"SUPER_CACHE_CA_FILE": str(certificate)}
            yield TlsCache(f"rediss://127.0.0.1:{port}", pid, environment)
        finally:
            _end(front)


def _make_certificate(directory: Path) -> tuple[Path, Path]:
    """A certificate for loopback that is its own authority, good for a day, and its key: PEM files."""
    binary = shutil.which("openssl")
    if binary is None:
        raise BenchmarkError("--tls makes a certificate with the program openssl: install it")
    certificate, key = directory / "certificate.pem", directory / "key.pem"
    command = [binary, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "1", "-subj", "/CN=localhost", "-keyout", str(key), "-out", str(certificate)]
    command += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchmarkError(f"openssl made no certificate: {done.stderr.strip()}")
    return certificate, key


def _wait_until_it_listens(path: Path, process: subprocess.Popen[bytes], log: Path) -> None:
    until_s = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < until_s and process.poll() is None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(str(path))
            except OSError:
                time.sleep(_POLL_S)
            else:
                return
    said = log.read_text(encoding="utf-8", errors="replace").strip()
    raise BenchmarkError(f"the coordinator does not answer; it said:\n{said}")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.communicate(timeout=_END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
