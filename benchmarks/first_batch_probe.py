"""``python -m benchmarks.first_batch_probe SPEC``: opens one loader in a process of its own and takes the
time to its first batch; prints one line of JSON.

Modules are imported before the clock starts. Which loaders are opened in which state is
:mod:`benchmarks.first_batch`'s.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass
from importlib import import_module

from benchmarks.child import run_child
from benchmarks.contenders import CONTENDERS
from benchmarks.loading import Contender, Loading

__all__ = ["ProbeResult", "ProbeSpec", "run_probe"]

_MODULES = ("grpc", "grpc_health.v1.health_pb2_grpc", "sampler", "super_dataset")
"""What SUPER imports on the way to its first batch."""


@dataclass(frozen=True, slots=True)
class ProbeSpec:
    """Which loader is opened, and on what."""

    contender: str
    loading: Loading


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Seconds to make the loader, from ``iter(loader)`` to the first batch, and the same in the next epoch.

    ``produced`` counts the samples that functions decoded in the first epoch.
    """

    open_s: float
    first_batch_s: float
    next_epoch_s: float
    images: int
    produced: int


def run_probe(spec: ProbeSpec) -> ProbeResult:
    """Take the times in a fresh process.

    Raises:
        BenchmarkError: it failed; the message has what it said.

    """
    printed = run_child("first_batch_probe", [json.dumps(asdict(spec))], name=spec.contender)
    return ProbeResult(**json.loads(printed))


def _probe(spec: ProbeSpec) -> ProbeResult:
    for module in _MODULES:
        import_module(module)
    began_s = time.perf_counter()
    contender = CONTENDERS[spec.contender].open(spec.loading)
    opened_s = time.perf_counter()
    try:
        first_batch_s, images = _epoch(contender)
        produced = contender.produced()
        next_epoch_s, _ = _epoch(contender)
    finally:
        contender.close()
    return ProbeResult(opened_s - began_s, first_batch_s, next_epoch_s, images, produced)


def _epoch(contender: Contender) -> tuple[float, int]:
    """Seconds from ``iter`` to the first batch, and how many images the epoch had."""
    began_s = time.perf_counter()
    batches = iter(contender)
    _, labels = next(batches)
    first_batch_s = time.perf_counter() - began_s
    return first_batch_s, len(labels) + sum(len(more) for _, more in batches)


def _parse(text: str) -> ProbeSpec:
    fields = json.loads(text)
    return ProbeSpec(**{**fields, "loading": Loading(**fields["loading"])})


if __name__ == "__main__":
    print(json.dumps(asdict(_probe(_parse(sys.argv[1])))))
