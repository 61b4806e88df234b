"""Checks of this machine alone: what DataLoader workers need to hand batches over."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from superdl.doctor.finding import bad, doubtful, good, skipped

if TYPE_CHECKING:
    from superdl.doctor.case import Case, Seen
    from superdl.doctor.finding import Found

__all__ = ["check_shared_memory", "judge_shared_memory"]

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # looked at, never written to
_ENOUGH_BYTES = 256 * 2**20
_REMEDY = (
    "give the container more: docker run --shm-size=2g (or --ipc=host), shm_size: 2gb in a compose file, an "
    "emptyDir with medium: Memory mounted at /dev/shm in Kubernetes"
)


def check_shared_memory(case: Case, seen: Seen) -> Found:  # noqa: ARG001  # all checks are asked alike
    """Whether torch's workers have shared memory enough: Docker gives 64 MB, which a batch or two fill."""
    return judge_shared_memory(_SHARED_MEMORY)


def judge_shared_memory(directory: Path) -> Found:
    """What the size of a file system in memory means.

    SUPER's own batches lie in files in memory that this limit does not count; labels, what a transform makes
    and batches of other loaders do not.
    """
    try:
        told = os.statvfs(directory)
    except OSError as error:
        return skipped(f"{directory} cannot be looked at: {error.strerror}")
    size, free = told.f_frsize * told.f_blocks, told.f_frsize * told.f_bavail
    seen = f"{directory} has {size >> 20:,} MiB, {free >> 20:,} MiB of it free"
    why = f"{seen}: a DataLoader worker that finds no room in it dies with a bus error"
    if size < _ENOUGH_BYTES:
        return bad(why, _REMEDY)
    if free < _ENOUGH_BYTES:
        return doubtful(why, f"see who fills it (ls -l {directory}), or {_REMEDY}")
    return good(seen)
