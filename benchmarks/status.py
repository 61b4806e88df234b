"""``superdl bench status``: what a trainer's main process pays to know where its batches are.

SUPER's sampler asks for a page of many batches at once and each comes with its status; the earlier loader of
this kind asked once for every batch. Both ways are measured against one running
coordinator with everything cached. What a page holds is the coordinator's matter, when it is asked for the
sampler's.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
import os
import time
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

import grpc

from benchmarks import positive
from benchmarks.image_sets import described, prepare_images
from benchmarks.processes import BenchmarkError, process_cpu_s
from benchmarks.results import BenchmarkReport, Column, Run, Started, by_conditions
from benchmarks.services import LoaderServices, loader_services
from superdl.sampler import SuperSampler
from superdl.super_dataset import Recipe, SuperDataset
from superdl.super_wire import coordinator_pb2 as pb
from superdl.super_wire.coordinator_pb2_grpc import CoordinatorStub
from superdl.super_wire.ids import ID_BYTES

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from benchmarks.image_sets import Loading

__all__ = ["add_arguments", "measure"]

PAGE = "pages"
SINGLE = "status calls"
SAMPLER = "SuperSampler"

_ANSWERS_S, _PAUSE_S = 30.0, 0.01

_METHOD = (
    (
        "Times are of the sampler's process, for every batch of an epoch and divided by the number of "
        "batches: the wall clock while it waits for answers and takes them apart, and the CPU of all its "
        "threads, grpc's too. The coordinator's CPU is beside. Everything is cached. Ways take turns; "
        "figures are medians over the rounds, and one round more comes first, uncounted, to warm up."
    ),
    (
        f"{PAGE} (NextBatches): what SUPER does, though in the background; beside their status, batches come "
        f"with sample ids, labels and keys. {SINGLE} (GetBatchStatus): one call for each batch, as the "
        "earlier loader of this kind made; this one tells the state of every sample. "
        f"{SAMPLER}: iterating it alone, pages and BatchRefs included, nothing read."
    ),
)

_COLUMNS = (
    Column("way", "way"),
    Column("batches_per_call", "batches\n/call", ".1f"),
    Column("wall_ms_per_batch", "ms\n/batch", ".4f"),
    Column("times_wall_of_page", "times\npages", ".1f"),
    Column("cpu_ms_per_batch", "CPU ms\n/batch", ".4f"),
    Column("times_cpu_of_page", "times\npages", ".1f"),
    Column("coordinator_cpu_ms_per_batch", "coordi-\nnator", ".4f"),
    Column("wall_ms_per_call", "ms\n/call", ".3f"),
    Column("cpu_ms_per_call", "CPU ms\n/call", ".3f"),
    Column("reply_bytes_per_batch", "bytes\n/batch", ",.0f"),
)

_TIMEOUT_S = 30.0
_EPOCH = 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the benchmark's options."""
    parser.add_argument(
        "--batch-size", nargs="+", type=positive, default=[16, 64], metavar="N", help="(16 64)"
    )
    parser.add_argument(
        "--page", type=positive, default=64, help="batches of a page, at most (64, as the sampler's)"
    )
    parser.add_argument("--rounds", type=positive, default=20, help="rounds that count (20)")
    parser.add_argument(
        "--data", metavar="DIR", help="where image sets are kept (below the temporary directory)"
    )


def measure(arguments: argparse.Namespace, say: Callable[[str], None]) -> BenchmarkReport:
    """Ask in all ways; ``say`` gets a line for each batch size.

    Raises:
        SuperError: images or services cannot be had, or the coordinator answered otherwise than expected.

    """
    started = Started(arguments)
    images = prepare_images("digits", arguments, say)
    runs: list[Run[_Epoch]] = []
    with loader_services() as services:
        for batch_size in arguments.batch_size:
            say(f"batch {batch_size}: filling the cache")
            runs += _measure_batch_size(images, batch_size, arguments.page, arguments.rounds, services)
    return started.report(
        image_sets=described([images]),
        method=_METHOD,
        group_by=("images", "batch_size"),
        columns=_COLUMNS,
        rows=_rows(run for run in runs if run.round > 0),  # the first is the warm-up
        rounds=(run.to_mapping() for run in runs),
    )


@dataclass(frozen=True, slots=True)
class _Epoch:
    """One way through one epoch. ``calls`` is 0 where they are not counted."""

    batches: int
    calls: int
    wall_s: float
    cpu_s: float
    coordinator_cpu_s: float
    reply_bytes: int


def _measure_batch_size(
    images: Loading, batch_size: int, page: int, rounds: int, services: LoaderServices
) -> Iterator[Run[_Epoch]]:
    dataset = SuperDataset(
        f"file://{images.directory}", recipe=Recipe.image(resize=images.resize, crop=images.crop)
    )
    with SuperSampler(dataset, batch_size=batch_size, coordinator=services.coordinator) as sampler:
        batch_ids = []
        for ref in sampler:
            dataset[ref]  # now it is cached
            batch_ids.append(ref.batch_id)
        _wait_for_answers(sampler)
        with contextlib.closing(_StatusCalls(services.coordinator, sampler.job, batch_ids)) as calls:
            ways: dict[str, Callable[[], int]] = {
                PAGE: lambda: calls.pages(page),
                SINGLE: calls.statuses,
                SAMPLER: lambda: sum(1 for _ in sampler),
            }
            for number, (way, ask) in itertools.product(range(rounds + 1), ways.items()):
                calls.made = calls.reply_bytes = 0
                start = _clocks(services)
                asked = ask()
                wall_s, cpu_s, coordinator_s = map(operator.sub, _clocks(services), start)
                if asked != len(batch_ids):
                    raise BenchmarkError(f"{way}: {asked} batches were told of instead of {len(batch_ids)}")
                epoch = _Epoch(
                    batches=asked,
                    calls=calls.made,
                    wall_s=wall_s,
                    cpu_s=cpu_s,
                    coordinator_cpu_s=coordinator_s,
                    reply_bytes=calls.reply_bytes,
                )
                yield Run({"images": images.name, "batch_size": batch_size, "way": way}, number, epoch)


def _wait_for_answers(sampler: SuperSampler) -> None:
    """Wait, bounded, until the coordinator knows all that was read: functions answer once all is cached."""
    end_s = time.monotonic() + _ANSWERS_S
    while sampler.job_stats().total_requests_in_flight:
        if time.monotonic() > end_s:
            raise BenchmarkError(f"functions have not answered {_ANSWERS_S:g} s after all was read")
        time.sleep(_PAUSE_S)


def _clocks(services: LoaderServices) -> tuple[float, float, float]:
    """Wall clock, CPU of this process, CPU of the coordinator; seconds."""
    return time.perf_counter(), process_cpu_s(os.getpid()), process_cpu_s(services.pids.coordinator)


def _rows(runs: Iterable[Run[_Epoch]]) -> Iterator[dict[str, Any]]:
    pages: dict[str, Any] = {}
    for conditions, epochs in by_conditions(runs):
        row = _figures(epochs)
        pages = row if conditions["way"] == PAGE else pages  # it is the first way of each batch size
        yield {
            **conditions,
            **row,
            "times_wall_of_page": row["wall_ms_per_batch"] / pages["wall_ms_per_batch"],
            "times_cpu_of_page": row["cpu_ms_per_batch"] / pages["cpu_ms_per_batch"],
        }


def _figures(runs: Sequence[_Epoch]) -> dict[str, Any]:
    batches, calls = runs[0].batches, runs[0].calls
    wall_ms, cpu_ms = 1e3 * median(run.wall_s for run in runs), 1e3 * median(run.cpu_s for run in runs)
    return {
        "batches_per_call": batches / calls if calls else None,
        "wall_ms_per_batch": wall_ms / batches,
        "cpu_ms_per_batch": cpu_ms / batches,
        "coordinator_cpu_ms_per_batch": 1e3 * median(run.coordinator_cpu_s for run in runs) / batches,
        "wall_ms_per_call": wall_ms / calls if calls else None,
        "cpu_ms_per_call": cpu_ms / calls if calls else None,
        "reply_bytes_per_batch": runs[0].reply_bytes / batches if calls else None,
    }


class _StatusCalls:
    """Asks about the batches of the first epoch of one job, rank 0; gives how many it was told of.

    Attributes:
        made: calls made; the caller may reset it.
        reply_bytes: bytes of their replies; likewise.

    """

    def __init__(self, coordinator: str, job: str, batch_ids: Sequence[bytes]) -> None:
        self.made = 0
        self.reply_bytes = 0
        self._job = job
        self._batch_ids = batch_ids
        self._channel = grpc.insecure_channel(coordinator)
        self._coordinator = CoordinatorStub(self._channel)

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    def pages(self, page_batches: int) -> int:
        """The plan in pages, as the sampler asks for it."""
        position, end = 0, len(self._batch_ids)
        while position < end:
            request = pb.NextBatchesRequest(
                job=self._job,
                epoch=_EPOCH,
                position=position,
                count=min(page_batches, end - position),
                yielded=position,
                with_keys=True,
            )
            page = self._coordinator.NextBatches(request, timeout=_TIMEOUT_S)
            self._count(page.ByteSize())
            for batch in page.batches:
                _check_ready(batch.resident, len(batch.sample_ids) // ID_BYTES)
            position += len(page.batches)
        return position

    def statuses(self) -> int:
        """One call for each batch."""
        for batch_id in self._batch_ids:
            request = pb.GetBatchStatusRequest(batch_ids=[batch_id])
            reply = self._coordinator.GetBatchStatus(request, timeout=_TIMEOUT_S)
            self._count(reply.ByteSize())
            for status in reply.statuses:
                _check_ready(status.resident, status.samples)
        return len(self._batch_ids)

    def _count(self, reply_bytes: int) -> None:
        self.made += 1
        self.reply_bytes += reply_bytes


def _check_ready(resident: int, samples: int) -> None:
    if resident != samples or not samples:
        raise BenchmarkError(f"{resident} of a batch's {samples} samples are cached, though all were read")
