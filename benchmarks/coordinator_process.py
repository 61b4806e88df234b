"""The coordinator that ``superdl bench coordinator`` measures: the real server in a process of its own, with
catalogs that need no source and functions that need no time.

Catalogs have the size of ImageNet, keys as ImageNet's and versions as S3's. What the coordinator does with a
catalog depends on its size and on the shape of its strings, not on images behind them. It runs as
``python -m benchmarks.coordinator_process SPEC``. What is asked of it is
:mod:`benchmarks.coordinator_clients`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import sys
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.processes import ROOT
from benchmarks.services import running
from superdl.coordinator.catalog import Catalog, PackedStrings, datasets
from superdl.coordinator.executors import Executor, Scaling
from superdl.coordinator.server import server
from superdl.coordinator.server.settings import Settings
from superdl.super_wire.executors import EXECUTORS
from superdl.super_wire.request import Outcome, PrefetchResult

if TYPE_CHECKING:
    from collections.abc import Iterator

    from superdl.super_wire.request import PrefetchRequest

__all__ = ["IMAGENET_SAMPLES", "CoordinatorSpec", "coordinator_process", "synthetic_catalog"]

IMAGENET_SAMPLES = 1_280_000

_RECORD_BYTES = 64 + 224 * 224 * 3
_FUNCTIONS = 3000
_INVOCATION_S = 0.02
_SAMPLE_S = 0.002
_CACHE_BYTES = 2**50
"""More than all catalogs together: nothing is dropped."""
_CLASSES = 1000
_FIRST_CLASS = 1_440_764
_CLASS_STEP = 14_197
_NUMBER_STEP = 17
_ETAG_BYTES = 16


@dataclass(frozen=True, slots=True)
class CoordinatorSpec:
    """Where the coordinator listens, its cache's address, and how many samples a catalog has.

    It knows the sources ``s3://bench-0/train``, ``s3://bench-1/train`` and so on.
    """

    address: str
    cache: str
    samples: int


@contextlib.contextmanager
def coordinator_process(spec: CoordinatorSpec) -> Iterator[int]:
    """Run it; gives its process id once it listens.

    Raises:
        BenchmarkError: it does not start; the message has what it said.

    """
    command = [sys.executable, "-m", "benchmarks.coordinator_process", json.dumps(asdict(spec))]
    with running(command, spec.address.removeprefix("unix:"), cwd=ROOT) as pid:
        yield pid


def synthetic_catalog(number: int, samples: int) -> Catalog:
    """The ``number``-th catalog: keys ``train/n01440764/n01440764_18.JPEG``, versions of 32 hex digits.

    Catalogs of different numbers have nothing in common but the shape of their keys.
    """
    classes = [f"n{_FIRST_CLASS + _CLASS_STEP * place:08d}" for place in range(min(_CLASSES, samples))]
    per_class = -(-samples // len(classes))

    def keys() -> Iterator[bytes]:
        for place in range(samples):
            name = classes[place // per_class]
            yield f"train/{name}/{name}_{1 + _NUMBER_STEP * (place % per_class)}.JPEG".encode()

    etags = np.random.default_rng(number).bytes(samples * _ETAG_BYTES).hex().encode()
    digits = 2 * _ETAG_BYTES
    offsets = np.arange(0, (samples + 1) * digits, digits, dtype=np.uint64)
    labels = np.arange(samples, dtype=np.int64) // per_class
    packed = PackedStrings.pack(keys())
    return Catalog.build(f"s3://bench-{number}", packed, PackedStrings(etags, offsets), labels, classes)


class AnswersAlone(Executor):
    """An executor without functions: it waits as long as they might take, and says that all is cached.

    Nothing is fetched, decoded or written.
    """

    name = "local"  # whose row of the registry it takes
    remote = False
    region = ""
    fingerprint = "00" * 16
    scaling = Scaling(_FUNCTIONS, burst=_FUNCTIONS, per_s=math.inf, backlog=_FUNCTIONS)

    async def start(self) -> None:
        """Nothing to start."""

    async def invoke(self, request: PrefetchRequest, *, timeout_s: float) -> PrefetchResult:
        """All of it is cached, after a while."""
        count = len(request.keys)
        duration_s = _INVOCATION_S + count * _SAMPLE_S
        await asyncio.sleep(min(duration_s, timeout_s))
        return PrefetchResult(
            request_id=request.request_id,
            function_version="bench",
            cold_start=False,
            outcomes=(Outcome.CACHED,) * count,
            fetch_us=(10_000,) * count,
            decode_us=(2000,) * count,
            push_us=(100,) * count,
            source_bytes=(110_000,) * count,
            record_bytes=(_RECORD_BYTES,) * count,
            messages={},
            duration_us=int(1e6 * duration_s),
        )

    async def close(self) -> None:
        """Nothing to end."""


async def _serve(spec: CoordinatorSpec) -> None:
    """The production's own server, but for where catalogs come from and what answers requests."""

    def list_source(source: str, *_: object, **__: object) -> Catalog:
        number = int(source.removeprefix("s3://bench-").removesuffix("/train"))
        return synthetic_catalog(number, spec.samples)

    # Neither is a setting: nobody else has use for such a coordinator.
    setattr(datasets, "list_source", list_source)  # noqa: B010  # mypy allows no assignment to what is imported
    alone = f"{AnswersAlone.__module__}:{AnswersAlone.__name__}"
    EXECUTORS["local"] = replace(EXECUTORS["local"], implementation=alone)
    settings = Settings(
        listen=spec.address,
        cache=spec.cache,
        cache_bytes=_CACHE_BYTES,
        catalog_max_age_s=3600.0,
        owner="bench",
    )
    await server.serve(settings)


if __name__ == "__main__":
    asyncio.run(_serve(CoordinatorSpec(**json.loads(sys.argv[1]))))
