"""This machine alone: its clock beside others that told theirs, its shared memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from superdl.coordinator.executors import executor_classes
from superdl.doctor.checking import bad, doubtful, good, skipped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from superdl.doctor.checking import Case, ClockReading, Finding

__all__ = ["check_clock", "check_shared_memory", "judge_clocks", "judge_shared_memory"]

_REFUSED_S = 300.0  # AWS takes nothing that was signed by a clock so far off
_NOTICED_S = 5.0  # from here on superdl.coordinator.executors.messages.FunctionClock steps in
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # looked at, never written to
_ENOUGH_BYTES = 256 * 2**20
_MORE_MEMORY = (
    "give the container more: docker run --shm-size=2g (or --ipc=host), shm_size: 2gb in a compose file, an "
    "emptyDir with medium: Memory mounted at /dev/shm in Kubernetes"
)


def check_clock(case: Case) -> Finding:
    """How far this machine's clock is from those of store, cache, function and coordinator."""
    executors = executor_classes(case.functions().executors)
    aws = case.source.startswith("s3:") or any(executor.uses_aws for executor in executors)
    return judge_clocks(case.clocks, aws=aws)


def judge_clocks(clocks: Sequence[ClockReading], *, aws: bool) -> Finding:
    """What differences mean; of each only what its measuring leaves no doubt about.

    ``aws`` says whether anything is signed for AWS, which refuses what a wrong clock has signed.
    """
    if not clocks:
        return skipped("nobody has told a clock: with a source, a cache or a coordinator one is measured")
    told = ", ".join(f"{one.name} {one.ahead_s:+.2f} s (to within {one.within_s:.2f})" for one in clocks)
    measured = {one.name: round(one.ahead_s, 3) for one in clocks}
    certain_s = {one.name: max(0.0, abs(one.ahead_s) - one.within_s) for one in clocks}
    worst = max(certain_s, key=certain_s.__getitem__)
    all_others = len(clocks) > 1 and all(off_s >= _NOTICED_S for off_s in certain_s.values())
    whose = "this machine's clock" if all_others else f"the clock of {worst}, or this machine's,"
    remedy = f"set {whose} right: NTP (chronyd, systemd-timesyncd; on AWS 169.254.169.123)"
    if aws and certain_s[worst] >= _REFUSED_S:
        why = f"{told}: AWS refuses what is signed by a clock that is five minutes off"
        return bad(why, remedy, **measured)
    if certain_s[worst] >= _NOTICED_S:
        why = "requests to functions carry a time at which they expire, which is read by another clock"
        return doubtful(f"{told}: {why}", remedy, **measured)
    return good(f"ahead of this machine's: {told}", **measured)


def check_shared_memory(_: Case) -> Finding:
    """Whether torch's workers have shared memory enough: Docker gives 64 MB, which a batch or two fill."""
    return judge_shared_memory(_SHARED_MEMORY)


def judge_shared_memory(directory: Path) -> Finding:
    """What the size of a file system in memory means.

    SUPER's own batches lie in files in memory that this limit does not count; labels, what a transform makes
    and batches of other loaders do not.
    """
    try:
        told = os.statvfs(directory)
    except OSError as error:
        return skipped(f"{directory} cannot be looked at: {error.strerror}")
    size, free = told.f_frsize * told.f_blocks, told.f_frsize * told.f_bavail
    room = f"{directory} has {size >> 20:,} MiB, {free >> 20:,} MiB of it free"
    why = f"{room}: a DataLoader worker that finds no room in it dies with a bus error"
    if size < _ENOUGH_BYTES:
        return bad(why, _MORE_MEMORY)
    if free < _ENOUGH_BYTES:
        return doubtful(why, f"see who fills it (ls -l {directory}), or {_MORE_MEMORY}")
    return good(room)
