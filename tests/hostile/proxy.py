"""A process between others that passes their bytes on, and spoils them where a seed says so.

Each link has a target, a place to listen and its faults (:class:`Link`). A connection draws them from the
seed, the link's name, its own number and the direction, so one seed makes the same faults again where the
same is said. It is a process of its own: DataLoader's workers, forked from the test, would keep sockets open.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.hostile.spoiling import Way

__all__ = ["Connection", "Link", "Proxy"]

_ROOT = Path(__file__).resolve().parents[2]
_END_S = 20.0
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close with a reset


@dataclass
class Link:
    """One way between processes: to ``target``, ``host:port`` or the path of a unix socket.

    It listens at ``listen``, else at a free loopback port. With ``resp`` a fault meets a whole reply.
    ``odds`` says how often each fault is drawn, ``every`` how many replies lie between two, ``most`` how many
    there are; ``"down"`` is what the server says.
    """

    target: str
    listen: str = ""
    resp: bool = True
    odds: dict[str, int] = field(default_factory=dict)
    every: float = 10.0
    most: int = 0
    directions: tuple[str, ...] = ("down", "up")


class Proxy:
    """The process, as the test has it; ``addresses`` says where each link listens, by name."""

    def __init__(self, links: dict[str, Link], seed: int) -> None:
        plan = json.dumps({"seed": seed, "links": {name: asdict(link) for name, link in links.items()}})
        self._process = subprocess.Popen(  # our own
            [sys.executable, "-m", "tests.hostile.proxy", plan],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid
        self.addresses: dict[str, str] = self._answer()

    def begin(self) -> None:
        """Make faults from now on."""
        self._say("begin")

    def calm(self) -> list[str]:
        """Make no more, and end the connections that say nothing; in words, those that were made."""
        self._say("calm")
        done: list[str] = self._answer()
        return done

    def close(self) -> None:
        """End it, and all its connections."""
        self._process.kill()  # a DataLoader's worker that is left may hold its stdin open
        self._process.communicate(timeout=_END_S)

    def _say(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


class Server:
    """In the process: all links."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.seed: int = plan["seed"]
        self.links = {name: Link(**link) for name, link in plan["links"].items()}
        self.going = False
        self.done: list[str] = []
        self.left = {name: link.most for name, link in self.links.items()}
        self.open: set[Connection] = set()
        self.count = dict.fromkeys(self.links, 0)

    async def serve(self) -> None:
        """Until stdin ends."""
        addresses, listening = {}, []
        for name, link in self.links.items():
            welcome = self._welcome_of(name)
            if link.listen:
                listening.append(await asyncio.start_unix_server(welcome, link.listen))
                addresses[name] = link.listen
            else:
                server = await asyncio.start_server(welcome, "127.0.0.1", 0)
                listening.append(server)
                addresses[name] = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        _tell(addresses)
        words = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(words), sys.stdin)
        while word := await words.readline():
            self.going = word == b"begin\n"
            if not self.going:
                for connection in [one for one in self.open if one.silent]:
                    connection.end(reset=True)
                _tell(self.done)

    def _welcome_of(self, name: str) -> Any:
        async def welcome(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.count[name] += 1
            await Connection(self, name, self.count[name]).run(reader, writer)

        return welcome


class Connection:
    """One connection; ``silent`` says that nothing more is to come through."""

    def __init__(self, server: Server, name: str, number: int) -> None:
        self.server, self.name, self.number = server, name, number
        self.link = server.links[name]
        self.silent = False
        self._ends: list[asyncio.StreamWriter] = []

    async def run(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass on in both directions until both have ended."""
        self._ends.append(writer)
        self.server.open.add(self)
        host, _, port = self.link.target.rpartition(":")
        try:
            with contextlib.suppress(OSError):
                if port.isdigit():
                    there, beyond = await asyncio.open_connection(host, int(port))
                else:
                    there, beyond = await asyncio.open_unix_connection(self.link.target)
                self._ends.append(beyond)
                up, down = Way(self, "up", beyond, writer), Way(self, "down", writer, beyond)
                await asyncio.gather(up.run(reader), down.run(there))
        finally:
            self.server.open.discard(self)
            self.end()

    def end(self, *, reset: bool = False) -> None:
        """Close both ends, at once where it is a reset."""
        for writer in self._ends:
            if reset:
                end: socket.socket = writer.get_extra_info("socket")
                with contextlib.suppress(OSError):  # a unix socket knows no reset, a closed one nothing
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                writer.transport.abort()
            else:
                writer.close()


def _tell(what: object) -> None:
    sys.stdout.write(f"{json.dumps(what)}\n")
    sys.stdout.flush()


async def _main() -> None:
    await Server(json.loads(sys.argv[1])).serve()
    os._exit(0)  # what is open ends with the process, whatever state it is in


if __name__ == "__main__":
    asyncio.run(_main())
