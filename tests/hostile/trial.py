"""One seeded trial: real processes with faulty links, and the guarantees that must hold anyway.

Each sample comes once, in plan order and with its bytes, or a typed error comes in time. Afterwards no
process is left.
"""

from __future__ import annotations

import contextlib
import gc
import random
import re
import threading
import time
import traceback
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import pytest
import torch
from torch.utils.data import DataLoader

from superdl.coordinator.core import Plan
from superdl.sampler import SuperSampler
from superdl.super_dataset import Recipe, SuperDataset, SuperLoader
from superdl.super_dataset.reading import cache_link
from superdl.super_wire.cache import connection
from superdl.super_wire.errors import (
    CacheError,
    CacheUnreachableError,
    CoordinatorError,
    CoordinatorUnreachableError,
    ReadTimeoutError,
    SuperError,
)
from tests.fixtures.images import SIDE
from tests.fixtures.stack import END_TIMEOUT_S, Stack
from tests.hostile.function import FUNCTION, VARIABLE
from tests.hostile.proxy import Link, Proxy
from tests.integration.delivery import pixels_of

ROOT = Path(__file__).resolve().parents[2]
RECIPE = Recipe.image(resize=SIDE, crop=SIDE)
READ_TIMEOUT_S = 20.0
MARGIN_S = 10.0
COORDINATOR_S = 120.0
SILENCE_S = 1.0  # instead of 10 s: how long to wait for a dropped reply
STOPPED_S = 1.0
_SHOWN = 60
# Errors that report an expired time limit. While training, a passing fault may cause no other error.
IN_TIME = (ReadTimeoutError, CacheUnreachableError, CoordinatorUnreachableError)


# What any network may do to a connection, whatever the protocol.
STREAM = {"stall": 3, "trickle": 3, "silence": 1, "cut": 3, "reset": 3, "half_close": 2}
# What a middlebox or a bug may do to whole replies, on a live connection.
_ODDS = {
    "reader": STREAM
    | {"flip": 4, "drop": 1, "duplicate": 2, "swap": 3, "shift": 3, "replace": 2, "rubbish": 1},
    "function": STREAM | {"flip": 4, "drop": 1, "duplicate": 2, "swap": 2, "replace": 2, "rubbish": 1},
    "coordinator": STREAM | {"flip": 4, "drop": 1, "duplicate": 2, "swap": 2, "replace": 3, "rubbish": 2},
    # Plain gRPC and HTTP rely on TCP's checksum: flipped, dropped or swapped bytes would go unnoticed.
    "sampler": STREAM,
    "store": {"stall": 3, "trickle": 3, "silence": 1, "cut": 3, "reset": 3, "half_close": 2, "answer": 8},
}
IMAGES = 61
_ACTS = (
    "kill_coordinator", "kill_function", "kill_loader_worker", "stop_coordinator", "stop_function",
    "stop_cache", "restart_cache", "flush_cache",
)  # fmt: skip


@dataclass(frozen=True)
class Drawn:
    """One trial: ``loader`` is ``"super"``, or a DataLoader's number of workers; ``links`` has the arguments
    of each faulty ``Link``, ``acts`` the actions before batches, counted over all epochs. ``lasting``: a link
    is faulty to the end, so an error may come.
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
        """The arguments of sampler and plan."""
        return {"batch_size": self.batch_size, "seed": self.seed, "shuffle": self.shuffle}


def draw(seed):
    """Derive a trial from a seed."""
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
            most = 1 if len(odds) < 3 else min(most, 4)  # each costs a ten-second wait
        if lasting and name in ("reader", "function", "store"):  # waits for a coordinator take two minutes
            most = 10_000
        links[name] = {"odds": odds, "every": chance.choice([2.0, 8.0, 30.0]), "most": most}
    # If a function rewrites a record that was read, only its payload differs. On a unix socket a process
    # checks a hash at its first read only, so flip bits in a single epoch.
    epochs = 1 if unix and any("flip" in link["odds"] for link in links.values()) else 2
    batches = epochs * -(-IMAGES // batch_size)
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


class RoutedDataset(SuperDataset):
    """A dataset that reads the cache over its own route, ignoring the coordinator's address."""

    way = ""

    def ping_cache(self, cache):
        super().ping_cache(self.way)

    def __getitem__(self, ref):
        return super().__getitem__(replace(ref, cache=self.way))


class Trial:
    """A running trial."""

    def __init__(self, drawn, ground):
        self.drawn, self.ground = drawn, ground
        self.batches, self.longest_s = 0, 0.0
        self.error, self.faults = "none", []
        self._one_at_a_time = threading.Lock()
        self._timers = []
        self._over = threading.Event()
        self._died = []
        self._worker_killed = False
        self._served = True
        self._training = False
        valkey, store = ground.valkey, ground.store.url.removeprefix("http://")
        self.stack = Stack(tcp=True, cache="unset")
        targets = {
            "reader": valkey.directory / "redis.sock" if drawn.unix else f"127.0.0.1:{valkey.port}",
            "function": valkey.directory / "redis.sock",
            "coordinator": valkey.directory / "redis.sock",
            "sampler": self.stack.address,
            "store": store,
        }
        links = {name: Link(str(target), **drawn.links.get(name, {})) for name, target in targets.items()}
        for name in ("sampler", "store"):
            links[name].resp = False
        if drawn.unix:
            links["reader"].listen = f"{self.stack.valkey.directory}/reader.sock"
        self.proxy = Proxy(links, drawn.seed)
        self.ways = self.proxy.addresses

    def __str__(self):
        faults = "".join(f"\n    {fault}" for fault in self.faults[:_SHOWN])
        return (
            f"{self.drawn}\n  {self.batches} batches, the slowest in {self.longest_s:.1f} s\n"
            f"  error: {self.error}\n  faults:{faults}\n"
            f"  alone: pytest -m '' -k seed-{self.drawn.seed} tests/hostile/test_trials.py"
        )

    def run(self):
        """Run the trial. Raises ``AssertionError`` if a guarantee is broken."""
        before = set(psutil.Process().children(recursive=True))
        self._empty_cache()
        try:
            self._begin()
            watch = threading.Thread(target=self._watch)
            watch.start()
            try:
                self._train()
            finally:
                self._over.set()
                watch.join()
                for timer in self._timers:
                    timer.join()
                self.faults = self.proxy.calm()
                log = self.stack.log.read_text()
                self.stack.close()
        finally:
            self.proxy.close()
        assert not self._died, f"the coordinator exited: {self._died}\n{log[-4000:]}"
        assert "Traceback" not in log, log[-4000:]
        gc.collect()  # a traceback may hold the loader's iterator, and so its workers
        started = set(psutil.Process().children(recursive=True)) - before
        left = psutil.wait_procs(
            [process for process in started if not self._is_shared(process)], END_TIMEOUT_S
        )[1]
        assert not left, f"leftover processes: {left}"

    def _is_shared(self, process):
        """Whether it outlives a trial: a restarted cache, or Python's resource tracker."""
        cache = self.ground.valkey.process
        if cache is not None and process.pid == cache.pid:
            return True
        with contextlib.suppress(psutil.NoSuchProcess):
            return any("resource_tracker" in word for word in process.cmdline())
        return False

    def _empty_cache(self):
        with self.ground.valkey.client() as client:
            client.flushall()

    def _begin(self):
        stack, ways = self.stack, self.ways
        stack.cache = f"redis://{ways['coordinator']}"
        stack.arguments = ("--slots", "2", "--request-samples", "8", "--function", FUNCTION)
        stack.arguments += ("--request-timeout-s", "5")
        stack.environment |= {
            VARIABLE: f"redis://{ways['function']}",
            "PYTHONPATH": str(ROOT),
            "SUPER_S3_ENDPOINT_URL": f"http://{ways['store']}",
        }
        stack.start()

    def _watch(self):
        """Restart a coordinator that exited, as a service manager would, and record the exit."""
        while not self._over.wait(0.2):
            with self._one_at_a_time:
                process = self.stack.process
                if process is not None and process.poll() is not None:
                    if self._served:
                        self._died.append(f"exit code {process.returncode}")
                    self._start_coordinator()

    def _start_coordinator(self):
        self._served = False
        with contextlib.suppress(pytest.fail.Exception):  # a faulty link prevents it; retried
            self.stack.start_coordinator()
            self._served = True

    def _train(self):
        drawn = self.drawn
        source = self.ground.directory.as_uri() if drawn.source == "directory" else "s3://photos/train"
        dataset = RoutedDataset(source, RECIPE, read_timeout=READ_TIMEOUT_S)
        dataset.way = ("unix://" if drawn.unix else "redis://") + self.ways["reader"]
        if drawn.unwell_from_start:
            self.proxy.begin()
        asked_s = time.monotonic()
        try:
            with (
                mock.patch.object(connection, "IO_TIMEOUT_S", SILENCE_S),
                mock.patch.object(cache_link, "IO_TIMEOUT_S", SILENCE_S),
                SuperSampler(dataset, coordinator=self.ways["sampler"], **drawn.sampling) as sampler,
            ):
                self.proxy.begin()
                self._training = True
                loader = (
                    SuperLoader(dataset, sampler)
                    if drawn.loader == "super"
                    else DataLoader(dataset, sampler=sampler, batch_size=None, num_workers=int(drawn.loader))
                )
                plan = Plan(IMAGES, **drawn.sampling)
                for epoch in range(drawn.epochs):
                    asked_s = time.monotonic()
                    iterator = iter(loader)
                    for position in range(plan.batches_per_epoch):
                        self._act(iterator)
                        asked_s = time.monotonic()
                        self._compare(next(iterator), plan.batch(epoch, position, 0).indices.tolist())
                        self.longest_s = max(self.longest_s, time.monotonic() - asked_s)
                        self.batches += 1
                    assert next(iterator, None) is None, "more batches than planned"
        except (SuperError, RuntimeError, ConnectionResetError) as error:
            self._judge(error, time.monotonic() - asked_s)

    def _compare(self, batch, expected):
        images, labels = batch
        assert isinstance(images, torch.Tensor), f"batch {self.batches} is not a tensor: {type(images)}"
        came = pixels_of(images)
        known = {pixels: index for index, pixels in enumerate(self.ground.pixels)}
        indices = [known.get(pixels, -1) for pixels in came]
        assert indices == expected, (
            f"batch {self.batches} is wrong: expected {expected}, came {indices} (-1: nobody's pixels)"
        )
        assert labels.tolist() == [self.ground.labels[index] for index in expected]

    def _judge(self, error, waited_s):
        self.error = f"after {waited_s:.1f} s {''.join(traceback.format_exception(error))}"
        if not isinstance(error, SuperError):
            assert self._worker_killed, f"{error!r} is not typed"
            assert not isinstance(error, RuntimeError) or "DataLoader worker" in str(error), repr(error)
        bound_s = COORDINATOR_S if isinstance(error, CoordinatorError) else READ_TIMEOUT_S
        assert waited_s < bound_s + MARGIN_S, f"{error!r} was raised after {waited_s:.1f} s"
        if self.drawn.lasting or self._worker_killed or not self._training:
            return
        # A corrupted command is refused, and an error reply may belong to another command.
        spoilt = set(self.drawn.links.get("reader", {"odds": {}})["odds"]) - STREAM.keys()
        refused = type(error) is CacheError and spoilt
        in_time = isinstance(error, IN_TIME) and re.search(r"attempts (in|over) [0-9.]+ s", str(error))
        assert refused or in_time, f"{error!r} was raised early, for a passing fault"

    def _act(self, iterator):
        act = self.drawn.acts.get(self.batches)
        if act is not None:
            with self._one_at_a_time:
                getattr(self, f"_{act}")(iterator)

    def _kill_coordinator(self, _):
        if self.stack.process is not None and self.stack.process.poll() is None:
            self.stack.kill_coordinator()
        self._start_coordinator()

    def _kill_function(self, _):
        for function in self.stack.functions()[:1]:
            function.kill()

    def _kill_loader_worker(self, iterator):
        self._worker_killed = True
        iterator._workers[0].kill()

    def _stop_coordinator(self, _):
        assert self.stack.process is not None
        self._stop(self.stack.process.pid)

    def _stop_function(self, _):
        for function in self.stack.functions()[:1]:
            self._stop(function.pid)

    def _stop_cache(self, _):
        assert self.ground.valkey.process is not None
        self._stop(self.ground.valkey.process.pid)

    def _stop(self, pid):
        process = psutil.Process(pid)

        def go_on():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()

        process.suspend()
        timer = threading.Timer(STOPPED_S, go_on)
        timer.start()
        self._timers.append(timer)

    def _restart_cache(self, _):
        self.ground.valkey.restart_empty()

    def _flush_cache(self, _):
        self._empty_cache()
