"""End-to-end checks, with one small batch or with every sample."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from superdl.doctor.checking import bad, doubtful, good, skipped
from superdl.super_wire.display import shown, sized
from superdl.super_wire.executors import EXECUTORS, RunsOn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from superdl.doctor.checking import Case, Finding
    from superdl.sampler import SuperSampler
    from superdl.super_dataset import BatchInfo
    from superdl.super_wire.recipe import Recipe

_SAMPLES, _BATCH_SIZE = 4, 256
_SHARED_MEMORY = "/dev/shm"  # noqa: S108  # never written to
_ENOUGH_BYTES = 256 * 2**20
_PROGRESS_EVERY_S = 10.0
_REMEDY = 'fix or remove these objects, or train with on_bad_sample="skip" or "replace"'
_MORE_MEMORY = (
    "give the container more shared memory: docker run --shm-size=2g (or --ipc=host), shm_size: 2gb in a "
    "compose file, or an emptyDir with medium: Memory mounted at /dev/shm in Kubernetes"
)


def check_sample(case: Case) -> Finding:
    """Read the first few samples of the source, unshuffled."""
    if not case.source:
        remedy = "pass one: superdl doctor s3://bucket/prefix --resize 256 --crop 224"
        return skipped("no source was passed", remedy)
    began_s = time.monotonic()
    # Cached samples would prove nothing, so they are requested under new ids.
    sampler = _planned(case, _fresh(case.recipe), _SAMPLES, return_info=True)
    case.closing.callback(sampler.close)
    dataset = sampler.dataset
    ref = next(iter(sampler))
    planned_s = time.monotonic() - began_s
    cold: BatchInfo = dataset[ref][-1]
    produced_s = time.monotonic() - began_s - planned_s
    warm: BatchInfo = dataset[ref][-1]
    count = len(ref)
    fetch_ms, decode_ms = cold.fetch_s / count * 1000, cold.decode_s / count * 1000
    summary = (
        f"{count} of {len(dataset):,} samples: listed and planned in {planned_s:.2f} s; ready after "
        f"{produced_s:.2f} s ({fetch_ms:.1f} ms to fetch and {decode_ms:.1f} to decode each), read in "
        f"{warm.read_s * 1000:.1f} ms"
    )
    if warm.misses:
        remedy = "check whether the cache is full (superdl stats) or evicts keys (its maxmemory-policy)"
        return doubtful(f"{summary}; some were missing when they were read again", remedy)
    return good(summary)


def _planned(case: Case, recipe: Recipe, batch_size: int, **dataset_options: Any) -> SuperSampler:
    from superdl.sampler import SuperSampler
    from superdl.sampler.embedded.embedded import release_all
    from superdl.super_dataset import SuperDataset

    if not case.coordinator:
        case.closing.callback(release_all)
    key_list, patience_s = case.key_list or None, case.patience_s
    dataset = SuperDataset(case.source, recipe, key_list=key_list, read_timeout=patience_s, **dataset_options)
    with _embedded_variables(case):
        return SuperSampler(
            dataset,
            batch_size=batch_size,
            shuffle=False,
            rank=0,
            num_replicas=1,
            coordinator=case.coordinator or None,
            job=f"doctor-{os.urandom(8).hex()}",
        )


def _fresh(recipe: Recipe) -> Recipe:
    """Return an equivalent recipe whose samples are not cached anywhere. Non-random recipes with custom
    steps are returned unchanged.
    """
    from superdl.super_wire.recipe import Recipe

    seed = int.from_bytes(os.urandom(7), "little")
    fields: Any = {name: part.steps for name, part in recipe.parts.items()}
    if recipe.random:
        return Recipe(fields or recipe.steps, augment_seed=seed)
    if any(step["op"] == "custom" for step in recipe.steps):
        return recipe  # it may return something other than an image
    # A flip with probability 0 counts as random, so the seed changes the ids.
    steps = [*recipe.steps, {"op": "horizontal_flip", "p": 0.0}]
    return Recipe(fields | {"image": steps} if fields else steps, augment_seed=seed)


@contextlib.contextmanager
def _embedded_variables(case: Case) -> Iterator[None]:
    """Set the embedded coordinator's variables for executors and cache while the block runs."""
    before, variables = (
        dict(os.environ),
        {"SUPER_EXECUTOR": case.settings.executor, "SUPER_CACHE": case.named_cache},
    )
    if any(EXECUTORS[name].runs_on is not RunsOn.THIS_HOST for name in case.settings.executors):
        os.environ.update({name: value for name, value in variables.items() if value})
    try:
        yield
    finally:
        for name in variables:
            os.environ.pop(name, None)
        os.environ.update(before)


def check_shared_memory(_: Case) -> Finding:
    """Check that torch's workers have enough shared memory."""
    try:
        # Docker's 64 MB are full after a batch or two. SUPER's own batches are in memory files,
        # which do not count; labels, results of a transform and batches of other loaders do.
        stats = os.statvfs(_SHARED_MEMORY)
    except OSError as error:
        return skipped(f"cannot check {_SHARED_MEMORY}: {error.strerror}")
    size, free = stats.f_frsize * stats.f_blocks, stats.f_frsize * stats.f_bavail
    room = f"{_SHARED_MEMORY} has {sized(size)}, {sized(free)} of it free"
    why = f"{room}: a DataLoader worker that runs out of it dies with a bus error"
    if size < _ENOUGH_BYTES:
        return bad(why, _MORE_MEMORY)
    if free < _ENOUGH_BYTES:
        return doubtful(why, f"find out what fills it (ls -l {_SHARED_MEMORY}), or {_MORE_MEMORY}")
    return good(room)


def check_all_samples(case: Case) -> Finding:
    """Read each sample and list the bad ones with reasons. Report progress on stderr."""
    if not case.source:
        return skipped("no source was passed", "pass one: superdl doctor s3://bucket/prefix --all")
    from superdl.super_dataset import SuperLoader

    sampler = _planned(case, case.recipe, _BATCH_SIZE, on_bad_sample="skip")
    dataset = sampler.dataset
    read, reported_s = 0, time.monotonic()
    with sampler, SuperLoader(dataset, sampler) as loader:
        # Batches are dropped once counted, so this needs no more memory than a training job.
        for _, labels in loader:
            read += len(labels)
            if time.monotonic() - reported_s >= _PROGRESS_EVERY_S:
                reported_s = time.monotonic()
                sys.stderr.write(
                    f"{read:,} of {len(dataset):,} samples are good, {len(loader.bad_samples):,} are bad\n"
                )
        bad_samples = loader.bad_samples
    if read == len(dataset):
        return good(f"all {read:,} samples can be produced")
    lines = "".join(f"\n  {shown(sample.key)} ({shown(sample.reason)})" for sample in bad_samples)
    summary = f"{len(dataset) - read:,} of {len(dataset):,} samples cannot be produced:{lines}"
    return bad(summary, _REMEDY)
