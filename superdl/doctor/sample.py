"""One small batch through the whole path, as a training job would have it: planned, produced, read.

The job stays open for :mod:`superdl.doctor.bandwidth`, and is closed with the run. Whatever goes wrong is
told in the words that a training job would hear. Samples that the cache has already say nothing of functions:
then the same are asked for once more, under other names.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from superdl.coordinator.executors import executor_classes
from superdl.doctor.finding import doubtful, good, size_text, skipped
from superdl.super_wire.executors import EXECUTORS, RunsOn

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from superdl.doctor.case import Case, Seen
    from superdl.doctor.finding import Found
    from superdl.sampler import SuperSampler
    from superdl.super_dataset import BatchInfo, SuperDataset
    from superdl.super_wire.batch_ref import BatchRef
    from superdl.super_wire.recipe import Recipe

__all__ = ["check_dataset_fits", "check_sample"]

_SAMPLES = 4


@dataclass(frozen=True, slots=True)
class _Read:
    """A batch that was read twice."""

    dataset: SuperDataset
    sampler: SuperSampler
    ref: BatchRef
    planned_s: float
    produced_s: float
    first: BatchInfo
    second: BatchInfo

    @property
    def made(self) -> bool:
        """Whether a function made something for it."""
        return bool(self.first.misses or self.sampler.job_stats().samples_produced)


def check_sample(case: Case, seen: Seen) -> Found:
    """The first few samples of the source, unshuffled."""
    if not case.source:
        return skipped(
            "no source is named", "name one: superdl doctor s3://bucket/prefix --resize 256 --crop 224"
        )
    seen.closing.callback(_let_go, embedded=not case.coordinator)
    read = _through(case, seen, case.recipe)
    seen.dataset, seen.ref = read.dataset, read.ref
    seen.record_bytes = read.second.size_bytes // len(read.ref)
    seen.cache = seen.cache or read.ref.cache
    seen.budget_bytes = seen.budget_bytes or read.sampler.job_stats().budget_bytes
    made, how = read, ""
    if not read.made:
        fresh = _fresh(case.recipe)
        how = "they were in the cache already, "
        if fresh is None:
            how += "so that no function was asked; "
        else:
            how += "so copies under other names were made; "
            made = _through(case, seen, fresh)
    return _judge(read, made, how, seen.record_bytes)


def _judge(read: _Read, made: _Read, how: str, record_bytes: int) -> Found:
    count, first = len(read.ref), made.first
    fetch_ms, decode_ms = first.fetch_s / count * 1000, first.decode_s / count * 1000
    each = f"{fetch_ms:.1f} ms to fetch and {decode_ms:.1f} to decode each"
    words = (
        f"{count} of {len(read.dataset):,} samples: listed and planned in {read.planned_s:.2f} s; {how}"
        f"there after {made.produced_s:.2f} s ({each}), read in {read.second.read_s * 1000:.1f} ms"
    )
    measured: dict[str, float | str] = {
        "samples": len(read.dataset),
        "record_bytes": record_bytes,
        "planned_s": round(read.planned_s, 3),
        "produced_s": round(made.produced_s, 3),
        "read_s": round(read.second.read_s, 6),
    }
    if read.second.misses:
        remedy = "see whether the cache is full, or drops keys of its own accord (memory, above)"
        return doubtful(f"{words}; some were gone when they were read again", remedy, **measured)
    return good(words, **measured)


def _through(case: Case, seen: Seen, recipe: Recipe) -> _Read:
    """A first batch of a job of its own, which stays open.

    Raises:
        SuperError: what a training job would be told.
    """
    from superdl.sampler import SuperSampler
    from superdl.super_dataset import SuperDataset

    dataset = SuperDataset(
        case.source,
        recipe,
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
    seen.closing.callback(sampler.close)
    ref = next(iter(sampler))
    planned_s = time.monotonic() - began_s
    _, _, first = dataset[ref]
    produced_s = time.monotonic() - began_s - planned_s
    _, _, second = dataset[ref]
    return _Read(dataset, sampler, ref, planned_s, produced_s, first, second)


def _fresh(recipe: Recipe) -> Recipe | None:
    """A recipe of the same work whose samples are in no cache; ``None`` where there is no such thing.

    What is random has other sample ids with another seed, and a flip that is never made is random too.
    """
    from superdl.super_wire.recipe import Recipe

    seed = int.from_bytes(os.urandom(7), "little")
    if recipe.random:
        return Recipe(recipe.steps, augment_seed=seed)
    if any(step["op"] == "custom" for step in recipe.steps):
        return None  # it may give what is no image
    return Recipe([*recipe.steps, {"op": "horizontal_flip", "p": 0.0}], augment_seed=seed)


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
    settings = case.settings
    elsewhere = [name for name in settings.executors if EXECUTORS[name].runs_on is not RunsOn.THIS_HOST]
    if case.coordinator or not elsewhere:
        return {}
    chosen = {name: getattr(settings, name) for name in case.given}
    for executor in executor_classes(elsewhere):
        chosen |= executor.first_look
    named = {f"SUPER_{name.upper()}": _as_text(value) for name, value in chosen.items()}
    named |= {"SUPER_EXECUTOR": settings.executor, "SUPER_CACHE": case.cache}
    return {name: value for name, value in named.items() if value}


def _as_text(value: object) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


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
        from superdl.sampler.embedded.embedded import release_all

        release_all()
