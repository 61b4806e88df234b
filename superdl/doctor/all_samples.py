"""The check of every sample of a source, on an epoch's path: planned, decoded, read.

It needs no more memory than a training job: a bounded number of batches is read ahead, then dropped.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from superdl.doctor.checking import bad, good, skipped
from superdl.doctor.sample import planned_by
from superdl.super_wire.redaction import shown

if TYPE_CHECKING:
    from superdl.doctor.checking import Case, Finding

__all__ = ["check_all_samples"]

_PROGRESS_EVERY_S = 10.0
_REMEDY = 'mend or remove these objects, or train with on_bad_sample="skip" or "replace"'


def check_all_samples(case: Case) -> Finding:
    """Read each sample and list the bad ones with reasons; progress goes to stderr."""
    if not case.source:
        return skipped("no source is named", "name one: superdl doctor s3://bucket/prefix --all")
    from superdl.super_dataset import SuperLoader

    sampler = planned_by(case, case.recipe, case.batch_size, on_bad_sample="skip")
    dataset = sampler.dataset
    read, reported_s = 0, time.monotonic()
    with sampler, SuperLoader(dataset, sampler) as loader:
        for _, labels in loader:
            read += len(labels)
            if time.monotonic() - reported_s >= _PROGRESS_EVERY_S:
                reported_s = time.monotonic()
                sys.stderr.write(
                    f"{read:,} of {len(dataset):,} samples are good, {len(loader.bad_samples):,} are bad\n"
                )
        bad_samples = loader.bad_samples
    if read == len(dataset):
        return good(f"all {read:,} samples can be produced", samples=read)
    lines = "".join(f"\n  {shown(sample.key)} ({shown(sample.reason)})" for sample in bad_samples)
    summary = f"{len(dataset) - read:,} of {len(dataset):,} samples cannot be produced:{lines}"
    return bad(summary, _REMEDY, samples=read, bad=len(dataset) - read)
