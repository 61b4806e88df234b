"""A cache that is reached by TLS, with a certificate made for the occasion, and a coordinator over it.

The embedded default has a unix socket, which needs no TLS; so here all are started one by one. Servers from
pip are built without TLS: ``python -m benchmarks.tls SOCKET PORT CERTIFICATE KEY`` speaks it before one. The
key lives as long as the services, in a directory of this user's.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import ssl
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.child import ROOT, BenchmarkError
from benchmarks.services import LoaderServices, Server, cache_server, free_port, running
from superdl.sampler.embedded.host import cache_bytes, pool_workers

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["tls_cache", "tls_services"]

_CHUNK_BYTES = 2**18


@contextlib.contextmanager
def tls_services() -> Iterator[LoaderServices]:
    """Run a cache, a coordinator and functions; their clients need the environment that comes with them.

    Raises:
        EmbeddedError: there is no cache server to run.
        BenchmarkError: there is no openssl, or one of the processes does not answer.

    """
    with tempfile.TemporaryDirectory(prefix="superdl-tls-") as place, tls_cache(Path(place)) as cache:
        path = f"{place}/coordinator.sock"
        command = [sys.executable, "-P", "-m", "superdl.coordinator", "--listen", f"unix:{path}"]
        command += ["--cache", cache.address, "--cache-bytes", str(cache_bytes())]
        command += ["--workers", str(pool_workers())]
        with running(command, path, env={**os.environ, **cache.environment}) as pid:
            yield LoaderServices(f"unix:{path}", pid, cache.pid, cache.environment)


@contextlib.contextmanager
def tls_cache(directory: Path) -> Iterator[Server]:
    """Run an empty cache server, and what speaks TLS before it; their files lie in ``directory``.

    Raises:
        EmbeddedError: there is no server to run.
        BenchmarkError: there is no openssl, or one of them does not answer.

    """
    certificate, key = _make_certificate(directory)
    with cache_server(directory) as cache:
        port = free_port()
        words = (cache.address.removeprefix("unix://"), str(port), str(certificate), str(key))
        with running([sys.executable, "-m", "benchmarks.tls", *words], port, cwd=ROOT):
            environment = {"SUPER_CACHE_CA_FILE": str(certificate)}
            yield Server(f"rediss://127.0.0.1:{port}", cache.pid, environment)


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


async def _serve(path: str, port: int, certificate: str, key: str) -> None:
    """Pass on what comes by TLS to the socket at ``path``, and what comes back."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    async def joined(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_unix_connection(path, limit=_CHUNK_BYTES)
        await asyncio.gather(_copied(reader, inner_writer), _copied(inner_reader, writer))

    server = await asyncio.start_server(joined, "127.0.0.1", port, ssl=context, limit=_CHUNK_BYTES)
    await server.serve_forever()


async def _copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass on until either side closes; then close the other."""
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while chunk := await reader.read(_CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
    writer.close()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], int(sys.argv[2]), *sys.argv[3:]))
