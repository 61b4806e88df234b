"""What a trial is made of: what a seed draws of it, and the servers and images that trials share."""

from __future__ import annotations

import contextlib
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from tests.fixtures.images import CLASSES, SIDE, independent_decode, write_images
from tests.fixtures.object_store import ObjectStore, serve_objects
from tests.fixtures.valkey import Valkey

if TYPE_CHECKING:
    from pathlib import Path


# What a middlebox or a bug may do to whole replies without ending a connection, and how often.
_BYTES = {"flip": 4, "drop": 1, "duplicate": 2, "swap": 3, "shift": 3}
# What any network may do to a connection, whatever is said on it.
STREAM = {"stall": 3, "trickle": 3, "silence": 1, "cut": 3, "reset": 3, "half_close": 2}
_ODDS = {
    "reader": STREAM | _BYTES | {"replace": 2, "rubbish": 1},
    "function": STREAM | {"flip": 4, "drop": 1, "duplicate": 2, "swap": 2, "replace": 2, "rubbish": 1},
    "coordinator": STREAM | {"flip": 4, "drop": 1, "duplicate": 2, "swap": 2, "replace": 3, "rubbish": 2},
    # Plain gRPC and HTTP rest on TCP's checksum alone: bytes that are flipped, dropped or swapped pass.
    "sampler": STREAM,
    "store": {"stall": 3, "trickle": 3, "silence": 1, "cut": 3, "reset": 3, "half_close": 2, "answer": 8},
}
_ACTS = (
    *("kill_coordinator", "kill_function", "kill_loader_worker", "stop_coordinator", "stop_function"),
    *("stop_cache", "restart_cache", "flush_cache"),
)


@dataclass(frozen=True)
class Drawn:
    """One trial: ``loader`` is ``"super"``, or how many workers a DataLoader has; ``links`` has the arguments
    of each spoilt ``Link``, ``acts`` what is done before a batch, over all epochs. ``lasting``: a link is
    spoilt to the end, so that an error may come.
    """

    kind: str
    seed: int
    loader: str
    batch_size: int
    epochs: int
    shuffle: bool
    source: str
    unix: bool
    links: dict[str, dict[str, Any]]
    acts: dict[int, str] = field(default_factory=dict)
    lasting: bool = False
    unwell_from_start: bool = False
    with_bad: bool = False

    @property
    def sampling(self):
        """What a sampler and a plan are made with."""
        return {"batch_size": self.batch_size, "seed": self.seed, "shuffle": self.shuffle}


def draw(kind, seed):
    """The trial of a kind that a seed means."""
    chance = random.Random(f"{kind}/{seed}")
    loader = chance.choice(["super", "super", "0", "2"])
    batch_size = chance.choice([1, 3, 8, 8, 16, 31])
    unix = chance.random() < 0.3
    common = {"kind": kind, "seed": seed, "loader": loader, "batch_size": batch_size}
    common |= {"shuffle": chance.random() < 0.8, "unix": unix}
    if kind == "bytes":
        odds = {fault: _BYTES[fault] for fault in chance.sample(sorted(_BYTES), chance.randint(1, 4))}
        reader = {"odds": odds, "every": chance.choice([2.0, 6.0, 20.0]), "most": chance.randint(2, 16)}
        reader["directions"] = chance.choice([("down",), ("down",), ("down", "up")])
        return Drawn(
            **common,
            epochs=_epochs(reader, unix=unix),
            source="directory",
            links={"reader": reader},
            with_bad=batch_size > 1 and chance.random() < 0.3,
        )
    source = chance.choice(["directory", "bucket"])
    names = [name for name in _ODDS if name != "store" or source == "bucket"]
    lasting = chance.random() < 0.07
    links = {}
    for name in chance.sample(names, chance.randint(1, len(names))):
        odds = {
            fault: _ODDS[name][fault] for fault in chance.sample(sorted(_ODDS[name]), chance.randint(1, 6))
        }
        if name == "reader" and unix:
            odds.pop("flip", None)
        most = chance.randint(1, 8)
        if name in ("sampler", "coordinator") and not odds.keys().isdisjoint({"silence", "drop"}):
            most = 1 if len(odds) < 3 else min(most, 4)  # each is waited for ten seconds
        if lasting and name in ("reader", "function", "store"):  # a coordinator is waited for two minutes
            most = 10_000
        links[name] = {"odds": odds, "every": chance.choice([2.0, 8.0, 30.0]), "most": most}
    # A record that a function pushes again, after it was read, is another one only by its payload.
    epochs = _epochs(*links.values(), unix=unix)
    batches = epochs * -(-61 // batch_size)
    acts = {
        chance.randrange(batches): chance.choice(
            [act for act in _ACTS if loader == "2" or act != "kill_loader_worker"]
        )
        for _ in range(chance.choice([0, 0, 0, 1, 1, 2]))
    }
    return Drawn(
        **common,
        epochs=epochs,
        source=source,
        links=links,
        acts=acts,
        lasting=lasting,
        unwell_from_start=chance.random() < 0.2,
    )


def _epochs(*links, unix):
    """How many: on a unix socket a record is hashed when a process reads it first, so bits flip in one."""
    return 1 if unix and any("flip" in link["odds"] for link in links) else 2


IMAGES = 61
_BAD = ("ant/00008.jpg", "dog/00031.jpg")


@dataclass
class Ground:
    """What trials share: a cache that is emptied between them, and images whose pixels are known."""

    valkey: Valkey
    store: ObjectStore
    directories: dict[bool, Path]
    """Images; under ``True`` with some that cannot be decoded."""
    pixels: list[bytes]
    labels: list[int]
    bad: list[int]


@contextlib.contextmanager
def ground(directory):
    """Start what trials share; files go into a directory."""
    good, with_bad = write_images(directory / "good", IMAGES), write_images(directory / "with-bad", IMAGES)
    for name in _BAD:
        (with_bad / name).write_bytes(b"no image at all")
    names = sorted(str(path.relative_to(good)) for path in good.glob("*/*.jpg"))
    valkey = Valkey()
    valkey.start()
    try:
        with pytest.MonkeyPatch.context() as patch, serve_objects(directory / "buckets", patch) as store:
            write_images(store.directory / "photos" / "train", IMAGES)
            yield Ground(
                valkey,
                store,
                {False: good, True: with_bad},
                [independent_decode(good / name, resize=SIDE, crop=SIDE).tobytes() for name in names],
                [CLASSES.index(name.split("/")[0]) for name in names],
                [names.index(name) for name in _BAD],
            )
    finally:
        valkey.close()
