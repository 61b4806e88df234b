"""``python -m benchmarks.tls_front SOCKET CERTIFICATE KEY``: TLS before a cache server that was built without
it, as those from pip are. Prints its port on loopback and serves until it is ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import sys

__all__: list[str] = []

_CHUNK_BYTES = 2**18


async def _serve(path: str, certificate: str, key: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    async def joined(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_unix_connection(path, limit=_CHUNK_BYTES)
        await asyncio.gather(_copied(reader, inner_writer), _copied(inner_reader, writer))

    server = await asyncio.start_server(joined, "127.0.0.1", 0, ssl=context, limit=_CHUNK_BYTES)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def _copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass on until either side closes; then close the other."""
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while chunk := await reader.read(_CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
    writer.close()


if __name__ == "__main__":
    asyncio.run(_serve(*sys.argv[1:]))
