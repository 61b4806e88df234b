"""A proxy process that forwards bytes between processes, and corrupts them as a seed dictates.

Each link has a target, a listening address and its faults (:class:`Link`). A connection seeds them with the
seed, the link's name, its number and the direction, so a seed repeats its faults if the traffic repeats. It
is a separate process: forked DataLoader workers would otherwise keep the test's sockets open.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import socket
import struct
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

from superdl.super_wire.cache.resp import MalformedReplyError, parse_reply

_ROOT = Path(__file__).resolve().parents[2]
_END_S = 20.0
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: reset on close


@dataclass
class Link:
    """A link between processes, to ``target``: ``host:port`` or the path of a unix socket.

    It listens at ``listen``, or at a free loopback port. With ``resp``, a fault affects a whole reply.
    ``odds`` weights the faults, ``every`` is the mean number of replies between two, ``most`` the limit of
    faults. ``"down"`` is the direction from the server.
    """

    target: str
    listen: str = ""
    resp: bool = True
    odds: dict[str, int] = field(default_factory=dict)
    every: float = 10.0
    most: int = 0


class Proxy:
    """The test's handle on the proxy process; ``addresses`` has each link's listening address by name."""

    def __init__(self, links, seed):
        plan = json.dumps({"seed": seed, "links": {name: asdict(link) for name, link in links.items()}})
        self._process = subprocess.Popen(  # our own
            [sys.executable, "-m", "tests.hostile.proxy", plan],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid
        self.addresses = self._answer()

    def begin(self):
        """Start injecting faults."""
        self._say("begin")

    def calm(self):
        """Stop injecting faults and end silent connections. Return descriptions of the injected faults."""
        self._say("calm")
        return self._answer()

    def close(self):
        """Kill the process, with all its connections."""
        self._process.kill()  # a leftover DataLoader worker may hold its stdin open
        self._process.communicate(timeout=_END_S)

    def _say(self, word):
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()

    def _answer(self):
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


class Server:
    """All links, inside the proxy process."""

    def __init__(self, plan):
        self.seed = plan["seed"]
        self.links = {name: Link(**link) for name, link in plan["links"].items()}
        self.going = False
        self.done = []
        self.left = {name: link.most for name, link in self.links.items()}
        self.open = set()
        self.count = dict.fromkeys(self.links, 0)

    async def serve(self):
        """Run until stdin ends."""
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
                for connection in [each for each in self.open if each.silent]:
                    connection.end(reset=True)
                _tell(self.done)

    def _welcome_of(self, name):
        async def welcome(reader, writer):
            self.count[name] += 1
            await Connection(self, name, self.count[name]).run(reader, writer)

        return welcome


class Connection:
    """One connection. ``silent`` means that nothing more is forwarded."""

    def __init__(self, server, name, number):
        self.server, self.name, self.number = server, name, number
        self.link = server.links[name]
        self.silent = False
        self._ends = []

    async def run(self, reader, writer):
        """Forward in both directions until both have ended."""
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

    def end(self, *, reset=False):
        """Close both ends; with ``reset``, immediately."""
        for writer in self._ends:
            if reset:
                end = writer.get_extra_info("socket")
                with contextlib.suppress(OSError):  # not supported by unix sockets and closed sockets
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                writer.transport.abort()
            else:
                writer.close()


def _tell(what):
    sys.stdout.write(f"{json.dumps(what)}\n")
    sys.stdout.flush()


_READ_BYTES = 65536
_HELD_S = 0.05  # then held data is sent without a successor
_MOST_PIECES = 40
_HEAD_BYTES = 120  # reply frame and record header
_OTHER_REPLIES = (
    b"$-1\r\n", b"$0\r\n\r\n", b"$3\r\nabc\r\n", b"$64\r\n" + b"SUPR" + bytes(60) + b"\r\n", b"+OK\r\n",
    b":1\r\n", b":-7\r\n", b"*0\r\n", b"*1\r\n$4\r\nabcd\r\n", b"-ERR something went wrong\r\n", b"\r\n",
    b"-LOADING Redis is loading the dataset in memory\r\n", b"-MOVED 1 127.0.0.1:1\r\n",
    b"$99999999999999999999\r\n", b"%1\r\n+a\r\n+b\r\n",
)  # fmt: skip
_HTTP_ANSWERS = (
    b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 two hundred\r\n\r\n",
    b"\x15\x03\x01\x00\x02\x02\x28",
    b"HTTP/1.1 200 OK\r\nContent-Le",
)
_ONE_WAY = {"answer": "up", "replace": "down"}


def units(received):
    """Yield and remove complete commands or replies from the front of the buffer; all of it if not RESP."""
    while received:
        end = len(received)
        with contextlib.suppress(MalformedReplyError):
            parsed = parse_reply(received)
            if parsed is None:  # incomplete
                return
            end = parsed[1]
        yield bytes(received[:end])
        del received[:end]


class Way:
    """One direction of a connection: ``"up"`` from the client or ``"down"`` to it."""

    def __init__(self, connection, direction, sink, back):
        self._connection, self._direction = connection, direction
        self._sink, self._back, link = sink, back, connection.link
        seed = f"{connection.server.seed}/{connection.name}/{connection.number}/{direction}"
        self._random = random.Random(seed)
        self._odds = {
            fault: odds for fault, odds in link.odds.items() if _ONE_WAY.get(fault, direction) == direction
        }
        self._units = 0
        self._gap = self._draw_gap()
        self._held = []
        self._doubling_in = 0
        self._deaf = False

    def _draw_gap(self):
        return 1 + int(self._random.expovariate(1 / self._connection.link.every))

    async def run(self, source):
        """Forward everything until it ends."""
        received = bytearray()
        with contextlib.suppress(OSError):
            while True:
                data = await self._read(source)
                if not data:
                    break
                if not self._connection.link.resp:
                    await self._pass_on(data)
                    continue
                received += data
                for unit in units(received):
                    await self._pass_on(unit)
            self._write(bytes(received))
            if self._connection.silent or self._deaf:
                self._connection.end()
            elif self._sink.can_write_eof():
                self._sink.write_eof()

    async def _read(self, source):
        while self._held:
            with contextlib.suppress(TimeoutError):
                return await asyncio.wait_for(source.read(_READ_BYTES), _HELD_S)
            self._let_go()
        return await source.read(_READ_BYTES)

    def _let_go(self):
        held, self._held = self._held, []
        for unit in held:
            self._write(unit)

    def _write(self, data):
        if data and not self._deaf and not self._connection.silent and not self._sink.is_closing():
            self._sink.write(data)

    async def _pass_on(self, unit):
        self._units += 1
        server = self._connection.server
        if self._doubling_in:
            self._doubling_in -= 1
            if not self._doubling_in:
                self._write(unit)
        if not server.going or not self._odds or not server.left[self._connection.name]:
            self._write(unit)
        elif self._gap > 1:
            self._gap -= 1
            self._write(unit)
        else:
            self._gap = self._draw_gap()
            server.left[self._connection.name] -= 1
            (fault,) = self._random.choices([*self._odds], [*self._odds.values()])
            connection = self._connection
            server.done.append(
                f"{connection.name} {connection.number} {self._direction} {self._units}: "
                f"{fault} ({len(unit)} bytes, {unit[:24]!r})"
            )
            held, self._held = self._held, []
            await getattr(self, f"_{fault}")(unit)
            for earlier in held:
                self._write(earlier)
            return
        self._let_go()
        await self._sink.drain()

    async def _stall(self, unit):
        await asyncio.sleep(10 ** self._random.uniform(-2.0, 0.0))
        self._write(unit)

    async def _trickle(self, unit):
        pieces = self._random.randint(2, _MOST_PIECES)
        cuts = sorted(self._random.randrange(len(unit) + 1) for _ in range(pieces - 1))
        for start, end in zip([0, *cuts], [*cuts, len(unit)], strict=True):
            self._write(unit[start:end])
            await asyncio.sleep(0.001)

    async def _silence(self, unit):
        self._write(unit[: self._random.randrange(len(unit))])
        self._connection.silent = True

    async def _cut(self, unit):
        self._write(unit[: self._random.randrange(len(unit))])
        self._connection.end()

    async def _reset(self, unit):
        self._write(unit[: self._random.randrange(len(unit))])
        self._connection.end(reset=True)

    async def _half_close(self, unit):
        self._write(unit)
        if self._sink.can_write_eof() and not self._sink.is_closing():
            self._sink.write_eof()
        self._deaf = True

    async def _flip(self, unit):
        flipped = bytearray(unit)
        for _ in range(self._random.randint(1, 3)):
            reach = _HEAD_BYTES if self._random.random() < 0.3 else len(unit)
            flipped[self._random.randrange(min(reach, len(unit)))] ^= 1 << self._random.randrange(8)
        self._write(bytes(flipped))

    async def _drop(self, unit):
        """Drop it."""

    async def _duplicate(self, unit):
        self._write(unit)
        self._write(unit)

    async def _swap(self, unit):
        self._held.append(unit)

    async def _shift(self, unit):  # all until the duplicate are taken for their neighbours
        self._doubling_in = self._random.randint(1, 8)

    async def _replace(self, unit):
        self._write(self._random.choice(_OTHER_REPLIES))

    async def _rubbish(self, unit):
        self._write(self._random.randbytes(self._random.randint(1, 200)))
        self._write(unit)

    async def _answer(self, unit):
        self._back.write(self._random.choice(_HTTP_ANSWERS))


async def _main():
    await Server(json.loads(sys.argv[1])).serve()
    os._exit(0)  # end now, whatever is still open


if __name__ == "__main__":
    asyncio.run(_main())
