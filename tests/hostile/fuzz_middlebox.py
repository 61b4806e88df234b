"""Fuzzes what the trials themselves rest on: RESP cut into whole commands and replies, however it comes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.hostile.spoiling import units

if TYPE_CHECKING:
    import random

__all__ = ["FUZZERS"]

_LINES = (b"+OK\r\n", b"-ERR no\r\n", b":-12\r\n", b"$-1\r\n", b"*-1\r\n")


def _reply(chance: random.Random, depth: int = 0) -> bytes:
    kind = chance.randrange(4 if depth < 3 else 2)
    if kind == 0:
        return chance.choice(_LINES)
    if kind == 1:
        body = chance.randbytes(chance.choice([0, 1, 2, 40]))
        return b"$%d\r\n%b\r\n" % (len(body), body)
    inner = [_reply(chance, depth + 1) for _ in range(chance.randrange(4))]
    return b"*%d\r\n%b" % (len(inner), b"".join(inner))


def units_are_whole(chance: random.Random) -> None:
    """Replies come out one by one, whole and in order, wherever the network cuts their bytes."""
    replies = [_reply(chance) for _ in range(chance.randrange(1, 6))]
    data, received, found = b"".join(replies), bytearray(), []
    while data:
        cut = chance.randrange(1, len(data) + 1)
        received += data[:cut]
        data = data[cut:]
        found += list(units(received))
    assert found == replies


def rubbish_passes(chance: random.Random) -> None:
    """What is no RESP comes out as it came, or waits for more; no byte is lost and nothing is raised."""
    data = bytearray(chance.choice([b"", b"*1\r\n", b"$5\r\n"]) + chance.randbytes(chance.randrange(60)))
    whole = bytes(data)
    assert b"".join(units(data)) + data == whole


FUZZERS = {"middlebox: whole replies": units_are_whole, "middlebox: rubbish": rubbish_passes}
