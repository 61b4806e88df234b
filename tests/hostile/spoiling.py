"""What can be done to one direction of a connection, and where: at whole commands and replies."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.hostile.proxy import Connection

__all__ = ["Way", "units"]

_READ_BYTES = 65536
_HELD_S = 0.05  # what is held back for what comes after it goes on alone then
_MOST_PIECES = 40
_HEAD_BYTES = 120  # a reply's frame and a record's header
_OTHER_REPLIES = (
    *(b"$-1\r\n", b"$0\r\n\r\n", b"$3\r\nabc\r\n", b"$64\r\n" + b"SUPR" + bytes(60) + b"\r\n", b"+OK\r\n"),
    *(b":1\r\n", b":-7\r\n", b"*0\r\n", b"*1\r\n$4\r\nabcd\r\n", b"-ERR something went wrong\r\n", b"\r\n"),
    *(b"-LOADING Redis is loading the dataset in memory\r\n", b"-MOVED 1 127.0.0.1:1\r\n"),
    *(b"$99999999999999999999\r\n", b"%1\r\n+a\r\n+b\r\n"),
)
_STATUSES = (b"500 Oops", b"502 Bad Gateway", b"503 Slow Down", b"429 Too Many Requests")
_HTTP_ANSWERS = (
    *(b"HTTP/1.1 %b\r\nContent-Length: 0\r\n\r\n" % status for status in _STATUSES),
    b"HTTP/1.1 two hundred\r\n\r\n",
    b"\x15\x03\x01\x00\x02\x02\x28",
    b"HTTP/1.1 200 OK\r\nContent-Le",
)
_ONE_WAY = {"answer": "up", "replace": "down"}


def units(received: bytearray) -> Iterator[bytes]:
    """Take the whole commands or replies off the front of what was received; all of it, if it is no RESP."""
    while received:
        try:
            end = _end(received, 0)
        except ValueError:
            end = len(received)
        if end is None:
            return
        yield bytes(received[:end])
        del received[:end]


def _end(data: bytearray, at: int) -> int | None:
    """Where the command or reply that begins at ``at`` ends; ``None`` if it has not come as a whole."""
    line = data.find(b"\r\n", at)
    if line < 0:
        return None
    mark, end = data[at : at + 1], line + 2
    if mark in (b"+", b"-", b":"):
        return end
    count = int(data[at + 1 : line])
    if mark == b"$":
        end += count + 2 if count >= 0 else 0
        return end if end <= len(data) else None
    if mark != b"*":
        raise ValueError
    for _ in range(count):
        inner = _end(data, end)
        if inner is None:
            return None
        end = inner
    return end


class Way:
    """One direction of a connection, ``"up"`` from the client or ``"down"`` to it."""

    def __init__(
        self, connection: Connection, direction: str, sink: asyncio.StreamWriter, back: asyncio.StreamWriter
    ) -> None:
        self._connection, self._direction = connection, direction
        self._sink, self._back, link = sink, back, connection.link
        seed = f"{connection.server.seed}/{connection.name}/{connection.number}/{direction}"
        self._random = random.Random(seed)
        self._odds = {
            fault: odds
            for fault, odds in link.odds.items()
            if _ONE_WAY.get(fault, direction) == direction and direction in link.directions
        }
        self._units = 0
        self._gap = self._draw_gap()
        self._held: list[bytes] = []
        self._doubling_in = 0
        self._deaf = False

    def _draw_gap(self) -> int:
        return 1 + int(self._random.expovariate(1 / self._connection.link.every))

    async def run(self, source: asyncio.StreamReader) -> None:
        """Pass on what comes until it ends."""
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

    async def _read(self, source: asyncio.StreamReader) -> bytes:
        while self._held:
            with contextlib.suppress(TimeoutError):
                return await asyncio.wait_for(source.read(_READ_BYTES), _HELD_S)
            self._let_go()
        return await source.read(_READ_BYTES)

    def _let_go(self) -> None:
        held, self._held = self._held, []
        for unit in held:
            self._write(unit)

    def _write(self, data: bytes) -> None:
        if data and not self._deaf and not self._connection.silent and not self._sink.is_closing():
            self._sink.write(data)

    async def _pass_on(self, unit: bytes) -> None:
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
            made: Any = getattr(self, f"_{fault}")
            await made(unit)
            for earlier in held:
                self._write(earlier)
            return
        self._let_go()
        await self._sink.drain()

    async def _stall(self, unit: bytes) -> None:
        await asyncio.sleep(10 ** self._random.uniform(-2.0, 0.0))
        self._write(unit)

    async def _trickle(self, unit: bytes) -> None:
        pieces = self._random.randint(2, _MOST_PIECES)
        cuts = sorted(self._random.randrange(len(unit) + 1) for _ in range(pieces - 1))
        for start, end in zip([0, *cuts], [*cuts, len(unit)], strict=True):
            self._write(unit[start:end])
            await asyncio.sleep(0.001)

    async def _silence(self, unit: bytes) -> None:
        self._write(unit[: self._random.randrange(len(unit))])
        self._connection.silent = True

    async def _cut(self, unit: bytes) -> None:
        self._write(unit[: self._random.randrange(len(unit))])
        self._connection.end()

    async def _reset(self, unit: bytes) -> None:
        self._write(unit[: self._random.randrange(len(unit))])
        self._connection.end(reset=True)

    async def _half_close(self, unit: bytes) -> None:
        self._write(unit)
        if self._sink.can_write_eof() and not self._sink.is_closing():
            self._sink.write_eof()
        self._deaf = True

    async def _flip(self, unit: bytes) -> None:
        flipped = bytearray(unit)
        for _ in range(self._random.randint(1, 3)):
            reach = _HEAD_BYTES if self._random.random() < 0.3 else len(unit)
            flipped[self._random.randrange(min(reach, len(unit)))] ^= 1 << self._random.randrange(8)
        self._write(bytes(flipped))

    async def _drop(self, unit: bytes) -> None:
        """It never comes."""

    async def _duplicate(self, unit: bytes) -> None:
        self._write(unit)
        self._write(unit)

    async def _swap(self, unit: bytes) -> None:
        self._held.append(unit)

    async def _shift(self, unit: bytes) -> None:  # all until the doubled one are taken for their neighbours
        self._doubling_in = self._random.randint(1, 8)

    async def _replace(self, unit: bytes) -> None:
        self._write(self._random.choice(_OTHER_REPLIES))

    async def _rubbish(self, unit: bytes) -> None:
        self._write(self._random.randbytes(self._random.randint(1, 200)))
        self._write(unit)

    async def _answer(self, unit: bytes) -> None:
        self._back.write(self._random.choice(_HTTP_ANSWERS))
