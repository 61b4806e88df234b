"""How fast records come out of the cache to this machine, beside what the training loop takes."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from superdl.doctor.finding import doubtful, good, skipped

if TYPE_CHECKING:
    from superdl.doctor.case import Case, Seen
    from superdl.doctor.finding import Found
    from superdl.super_dataset.reading import BatchReader
    from superdl.super_wire.batch_ref import BatchRef

__all__ = ["check_bandwidth", "judge_bandwidth", "samples_at_once"]

_SECONDS = 0.5
_BYTES = 2 * 2**30
_READ_BYTES = 2**25  # by all readers at a time, so that a slow network is measured and not given up


def check_bandwidth(case: Case, seen: Seen) -> Found:
    """The sample's own records, read again and again, by one reader and by as many as the loop has."""
    if seen.ref is None:
        return skipped("no sample was read")
    from superdl.super_dataset.reading import BatchReader, ReadSettings
    from superdl.super_wire.record import HEADER_BYTES

    ref = _as_large_as(seen.ref, samples_at_once(case, max(seen.record_bytes, HEADER_BYTES)))
    reader = BatchReader(ReadSettings(read_timeout_s=10.0, record_bytes=seen.record_bytes or HEADER_BYTES))
    alone = _measured(reader, ref, 1)
    together = _measured(reader, ref, case.workers) if case.workers > 1 else alone
    return judge_bandwidth(case, alone, together, seen.record_bytes)


def samples_at_once(case: Case, record_bytes: int) -> int:
    """What each reader asks for in one read: a batch, or less where that would take a slow network long."""
    return min(case.batch_size, max(1, _READ_BYTES // (case.workers * record_bytes)))


def judge_bandwidth(case: Case, alone: float, together: float, record_bytes: int) -> Found:
    """What bytes a second of one reader and of all of them mean, for samples of so many bytes."""
    best = max(alone, together)  # on few cores one reader may do better than many
    images = best / record_bytes
    batches = images / case.batch_size
    words = (
        f"{alone / 1e9:.2f} GB/s by one reader, {together / 1e9:.2f} by {case.workers}: "
        f"{images:,.0f} samples or {batches:.1f} batches of {case.batch_size} a second"
    )
    measured = {"one_reader_bytes_per_s": alone, "bytes_per_s": best, "batches_per_s": round(batches, 3)}
    if not case.batches_per_s:
        return good(f"{words} (--batches-per-s says what your loop takes)", **measured)
    need = case.batches_per_s * case.batch_size * record_bytes
    if batches >= case.batches_per_s:
        return good(f"{words}; {case.batches_per_s:g} are wanted, {need / 1e9:.2f} GB/s", **measured)
    why = f"{words}; {case.batches_per_s:g} are wanted, which are {need / 1e9:.2f} GB/s"
    remedy = (
        "put trainer and cache into one zone, take a cache node (or more of them) and a machine with more "
        "network, or make samples smaller (crop)"
    )
    return doubtful(why, remedy, **measured)


def _as_large_as(ref: BatchRef, batch_size: int) -> BatchRef:
    """A batch of the same samples over and over; its keys and labels are nobody's matter here."""
    times = -(-batch_size // len(ref))
    return replace(
        ref, sample_ids=(ref.sample_ids * times)[: batch_size * 16], labels=b"", padding=b"", keys=()
    )


def _measured(reader: BatchReader, ref: BatchRef, readers: int) -> float:
    """Bytes a second that so many threads receive together, for half a second or two GiB.

    Raises:
        SuperError: a read failed.
    """
    from superdl.super_dataset.memory import RecycledMemory

    sizes, errors = [0] * readers, []
    began_s = time.monotonic()

    def read(number: int) -> None:
        memory = RecycledMemory()
        try:
            while time.monotonic() < began_s + _SECONDS and sizes[number] < _BYTES // readers:
                sizes[number] += reader.read(ref, memory).size_bytes
        except Exception as error:  # noqa: BLE001  # raised below, where it is heard
            errors.append(error)

    threads = [threading.Thread(target=read, args=(number,), daemon=True) for number in range(readers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return sum(sizes) / (time.monotonic() - began_s)
