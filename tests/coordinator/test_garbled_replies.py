"""A reply of the cache that is garbled, or another's, is a lost connection and no more."""

import asyncio
import contextlib
import random

import pytest

from superdl.coordinator.server.upkeep import agree_on_fingerprint
from superdl.super_wire.errors import CacheError
from superdl.super_wire.record import Tombstone
from tests.coordinator.server.test_upkeep import kept_at
from tests.fixtures.valkey import Valkey

IDS = bytes(range(48))
STREAM = b"super:n1:{reports}:job"
ENOUGH_S = 30.0


def flipped(seed):
    """One bit of a reply is another."""

    def flip(data):
        chance, changed = random.Random(seed), bytearray(data)
        changed[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        return bytes(changed)

    return flip


GARBLED = {
    repr(words[:20]): lambda _, words=words: words
    for words in (
        *(b":5\r\n", b":-1\r\n", b"$3\r\nabc\r\n", b"$0\r\n\r\n", b"$-1\r\n", b"*0\r\n", b"*-1\r\n"),
        *(b"$abc\r\n", b"*x\r\n", b":x\r\n", b"$-7\r\n", b"*-5\r\n", b"\r\n", b"hello\r\n", b"\xff\xfe\r\n"),
        *(b"*1\r\n:5\r\n", b"*2\r\n$-1\r\n$-1\r\n", b"*2\r\n:5\r\n:5\r\n", b"*2\r\n$2\r\n\xff\xfe\r\n*0\r\n"),
        *(b"*1\r\n*2\r\n$1\r\ns\r\n*1\r\n:1\r\n", b"*1\r\n" * 5000 + b":1\r\n"),
        *(
            b"-MOVED\r\n",
            b"-MOVED x y\r\n",
            b"-MOVED 1 \xff:1\r\n",
            b"-ASK 1 h\r\n",
            b"-\r\n",
            b"-\xff\xfe\r\n",
        ),
        *(b"-ASK 99999 127.0.0.1:x\r\n", b"-LOADING\r\n", b"+OK\r\n", b"+" + b"9" * 5000 + b"\r\n"),
    )
} | {f"flip {seed}": flipped(seed) for seed in range(10)}


class Garbler:
    """Passes on what a server on a unix socket says, but for the next piece of it where ``change`` is set."""

    def __init__(self, path):
        self._path = path
        self._writers = set()
        self.change = None

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._pass_on, "127.0.0.1", 0)
        self.address = f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_):
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await self._server.wait_closed()

    async def _pass_on(self, reader, writer):
        there, back = await asyncio.open_unix_connection(self._path)
        self._writers |= {writer, back}
        with contextlib.suppress(OSError):
            await asyncio.gather(self._pump(reader, back), self._pump(there, writer, garbles=True))

    async def _pump(self, source, target, *, garbles=False):
        while data := await source.read(2**20):
            if garbles and self.change is not None:
                data, self.change = self.change(data), None
            target.write(data)
            await target.drain()
        target.close()


@contextlib.asynccontextmanager
async def garbled_cache(valkey):
    """A cache behind a garbler, and all that a coordinator does with it, by name."""
    async with Garbler(f"{valkey.directory}/redis.sock") as garbler, kept_at(garbler.address) as kept:
        cache, reports = kept.cache, kept.reports
        await reports.follow("job")
        tombstone = Tombstone("k", "r", "m", permanent=False)
        uses = {
            "info": cache.info,
            "lock": cache.hold_lock,
            "golden": lambda: agree_on_fingerprint(cache, "aa"),
            "audit": lambda: cache.audit(IDS),
            "scan": lambda: cache.scan_records(0, count=100),
            "drop": lambda: cache.drop(IDS),
            "bury": lambda: cache.bury(IDS, [tombstone] * 3, 60.0),
            "streams": lambda: cache.streams.begin(STREAM),
            "upkeep": kept.upkeep.once,
            "reports": reports.read_once,
            "follow": lambda: reports.follow(f"job{len(reports.jobs)}"),
        }
        yield garbler, uses, kept.engine


GROUPS = 3


@pytest.fixture
def servers():
    """A cache for each of a group."""
    started = [Valkey() for _ in range(0, len(GARBLED), GROUPS)]
    for server in started:
        server.start()
    yield started
    for server in started:
        server.close()


@pytest.mark.parametrize("group", range(GROUPS))
async def test_a_garbled_reply_is_a_lost_connection_at_most(servers, group, monkeypatch):
    """Those of a group at the same time, since each waits again and again for a reply that does not come."""
    monkeypatch.setattr("superdl.coordinator.cache.streams._REPORTS_BLOCK_MS", 1)
    monkeypatch.setattr("superdl.coordinator.cache.nodes._TIMEOUT_S", 0.5)
    monkeypatch.setattr("superdl.super_wire.cache.commands._GRACE_S", 0.1)

    async def work(name, valkey):
        async with garbled_cache(valkey) as (garbler, uses, engine):
            for kind, use in uses.items():
                garbler.change = GARBLED[name]
                with contextlib.suppress(CacheError):
                    await use()
                garbler.change = None
                for attempt in (1, 2, 3):  # a redirection may first have to be found wrong
                    try:
                        await use()
                    except CacheError as error:
                        error.add_note(f"{name} to {kind}")
                        if attempt == 3:
                            raise
                    else:
                        break
            assert not engine.failed.done(), name

    async with asyncio.timeout(ENOUGH_S), asyncio.TaskGroup() as tasks:
        for name, valkey in zip(list(GARBLED)[group::GROUPS], servers, strict=False):
            tasks.create_task(work(name, valkey))
