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


# What any network may do to a connection, whatever is said on it.
STREAM = {"stall": 3, "trickle": 3, "silence": 1, "cut": 3, "reset": 3, "half_close": 2}
# A middlebox or a bug may do more to whole replies without ending a connection.
_ODDS = {
    "reader": STREAM
    | {"flip": 4, "drop": 1, "duplicate": 2, "swap": 3, "shift": 3, "replace": 2, "rubbish": 1},
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

    @property
    def sampling(self):
        """What a sampler and a plan are made with."""
        return {"batch_size": self.batch_size, "seed": self.seed, "shuffle": self.shuffle}


def draw(seed):
    """The trial that a seed means."""
    chance = random.Random(f"general/{seed}")
    loader = chance.choice(["super", "super", "0", "2"])
    batch_size = chance.choice([1, 3, 8, 8, 16, 31])
    unix = chance.random() < 0.3
    shuffle = chance.random() < 0.8
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
    # A record that a function pushes again, after it was read, is another one only by its payload. On a unix
    # socket it is hashed when a process reads it first, so that bits flip in one epoch.
    epochs = 1 if unix and any("flip" in link["odds"] for link in links.values()) else 2
    batches = epochs * -(-61 // batch_size)
    acts = {
        chance.randrange(batches): chance.choice(
            [act for act in _ACTS if loader == "2" or act != "kill_loader_worker"]
        )
        for _ in range(chance.choice([0, 0, 0, 1, 1, 2]))
    }
    return Drawn(
        seed=seed,
        loader=loader,
        batch_size=batch_size,
        epochs=epochs,
        shuffle=shuffle,
        source=source,
        unix=unix,
        links=links,
        acts=acts,
        lasting=lasting,
        unwell_from_start=chance.random() < 0.2,
    )


IMAGES = 61


@dataclass
class Ground:
    """What trials share: a cache that is emptied between them, and images whose pixels are known."""

    valkey: Valkey
    store: ObjectStore
    directory: Path
    pixels: list[bytes]
    labels: list[int]


@contextlib.contextmanager
def ground(directory):
    """Start what trials share; files go into a directory."""
    images = write_images(directory / "good", IMAGES)
    names = sorted(str(path.relative_to(images)) for path in images.glob("*/*.jpg"))
    pixels = [independent_decode(images / name, resize=SIDE, crop=SIDE).tobytes() for name in names]
    labels = [CLASSES.index(name.split("/")[0]) for name in names]
    valkey = Valkey()
    valkey.start()
    try:
        with pytest.MonkeyPatch.context() as patch, serve_objects(directory / "buckets", patch) as store:
            write_images(store.directory / "photos" / "train", IMAGES)
            yield Ground(valkey, store, images, pixels, labels)
    finally:
        valkey.close()
