"""One small batch through the whole path, as a training job would have it: planned, produced, read.

The job stays open for :mod:`superdl.doctor.bandwidth`, and is closed with the run. Whatever goes wrong is
told in the words that a training job would hear.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING

from superdl.doctor.finding import doubtful, good, size_text, skipped

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from superdl.doctor.case import Case, Seen
    from superdl.doctor.finding import Found

__all__ = ["check_dataset_fits", "check_sample"]

_SAMPLES = 4


def check_sample(case: Case, seen: Seen) -> Found:
    """The first few samples of the source, unshuffled."""
    if not case.source:
        return skipped("no source is named", "name one: superdl doctor s3://bucket/prefix --recipe ...")
    from sampler import SuperSampler
    from super_dataset import SuperDataset

    dataset = SuperDataset(
        case.source,
        case.recipe,
        key_list=case.key_list or None,
        return_info=True,
        read_timeout=case.patience_s,
    )
    began_s = time.monotonic()
    with _variables(_chosen(case)):
        sampler = SuperSampler(
            dataset,
            batch_size=_SAMPLES,
            shuffle=False,
            rank=0,
            num_replicas=1,
            coordinator=case.coordinator or None,
            job=f"doctor-{os.urandom(8).hex()}",
        )
    seen.closing.callback(_let_go, embedded=not case.coordinator)
    seen.closing.callback(sampler.close)
    ref = next(iter(sampler))
    planned_s = time.monotonic() - began_s
    _, _, first = dataset[ref]
    produced_s = time.monotonic() - began_s - planned_s
    _, _, second = dataset[ref]
    seen.dataset, seen.sampler, seen.ref = dataset, sampler, ref
    seen.record_bytes = second.size_bytes // len(ref)
    seen.cache = seen.cache or ref.cache
    seen.budget_bytes = seen.budget_bytes or sampler.job_stats().budget_bytes
    was = "was in the cache" if first.hits == len(ref) else "produced"
    words = (
        f"{len(ref)} of {len(dataset):,} samples: listed and planned in {planned_s:.2f} s, {was} in "
        f"{produced_s:.2f} s ({first.fetch_s / len(ref) * 1000:.1f} ms to fetch and "
        f"{first.decode_s / len(ref) * 1000:.1f} ms to decode each), read in {second.read_s * 1000:.1f} ms"
    )
    measured = {"planned_s": round(planned_s, 3), "produced_s": round(produced_s, 3), "read_s": second.read_s}
    if second.hits < len(ref):
        remedy = "see whether the cache is full, or drops keys of its own accord (memory, above)"
        return doubtful(f"{words}; some were gone when they were read again", remedy, **measured)
    return good(words, samples=len(dataset), record_bytes=seen.record_bytes, **measured)


def check_dataset_fits(case: Case, seen: Seen) -> Found:  # noqa: ARG001  # all checks are asked alike
    """Whether the cache has room for all samples at once."""
    if seen.dataset is None or not seen.record_bytes or not seen.budget_bytes:
        return skipped("its samples' size or the cache's room is not known")
    samples = len(seen.dataset)
    need = samples * seen.record_bytes
    words = f"{samples:,} samples of {seen.record_bytes:,} bytes are {size_text(need)}"
    measured = {"need_bytes": need, "budget_bytes": seen.budget_bytes}
    if need <= seen.budget_bytes:
        return good(f"{words}, the cache has room for {size_text(seen.budget_bytes)}", **measured)
    share = 1 - seen.budget_bytes / need
    room = size_text(seen.budget_bytes)
    why = f"{words}, the cache has room for {room}: {share:.0%} are made anew each epoch"
    return doubtful(
        why, "a larger cache, or smaller samples; superdl simulate tells what each costs", **measured
    )


def _chosen(case: Case) -> dict[str, str]:
    """What the embedded default reads from the environment, where a coordinator does not decide it."""
    if case.coordinator or case.settings.executors == ("local",):
        return {}
    settings = case.settings
    named = {
        "SUPER_EXECUTOR": settings.executor,
        "SUPER_CACHE": case.cache,
        "SUPER_LAMBDA_FUNCTION": settings.lambda_function,
        "SUPER_LAMBDA_REGION": settings.lambda_region,
        "SUPER_LAMBDA_ENDPOINT_URL": settings.lambda_endpoint_url,
        "SUPER_LAMBDA_CONCURRENCY": str(settings.lambda_concurrency),
        "SUPER_LAMBDA_WARM": "1",
    }
    return {name: value for name, value in named.items() if value}


@contextlib.contextmanager
def _variables(values: Mapping[str, str]) -> Iterator[None]:
    """Environment variables for what is started meanwhile."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _let_go(*, embedded: bool) -> None:
    """End the embedded default that was started for this."""
    if embedded:
        from sampler.embedded import release_all

        release_all()
