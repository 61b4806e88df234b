"""This machine's clock beside those of store, cache, function and coordinator, as far as they told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from superdl.coordinator.executors import executor_classes
from superdl.doctor.finding import bad, doubtful, good, skipped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from superdl.doctor.case import Case, Clock, Seen
    from superdl.doctor.finding import Found

__all__ = ["check_clock", "judge_clocks"]

_REFUSED_S = 300.0
"""AWS takes nothing that was signed by a clock so far off."""

_NOTICED_S = 5.0
"""From here on :mod:`superdl.coordinator.executors.messages.FunctionClock` steps in."""


def check_clock(case: Case, seen: Seen) -> Found:
    """How far apart they are, where that was measured."""
    executors = executor_classes(seen.functions(case).executors)
    aws = case.source.startswith("s3:") or any(executor.uses_aws for executor in executors)
    return judge_clocks(seen.clocks, aws=aws)


def judge_clocks(clocks: Sequence[Clock], *, aws: bool) -> Found:
    """What differences mean; of each only what its measuring leaves no doubt about.

    ``aws`` says whether anything is signed for AWS, which refuses what a wrong clock has signed.
    """
    if not clocks:
        return skipped("nobody has told a clock: with a source, a cache or a coordinator one is measured")
    told = ", ".join(
        f"{clock.name} {clock.ahead_s:+.2f} s (to within {clock.within_s:.2f})" for clock in clocks
    )
    worst = max(clocks, key=lambda clock: abs(clock.ahead_s) - clock.within_s)
    certain_s = max(0.0, abs(worst.ahead_s) - worst.within_s)
    measured = {clock.name: round(clock.ahead_s, 3) for clock in clocks}
    others = [clock for clock in clocks if abs(clock.ahead_s) - clock.within_s >= _NOTICED_S]
    whose = (
        "this machine's clock"
        if len(others) == len(clocks) > 1
        else f"the clock of {worst.name}, or this machine's,"
    )
    remedy = f"set {whose} right: NTP (chronyd, systemd-timesyncd; on AWS 169.254.169.123)"
    if aws and certain_s >= _REFUSED_S:
        why = f"{told}: AWS refuses what is signed by a clock that is five minutes off"
        return bad(why, remedy, **measured)
    if certain_s >= _NOTICED_S:
        why = (
            f"{told}: requests to functions carry a time at which they expire, which is read by another clock"
        )
        return doubtful(why, remedy, **measured)
    return good(f"ahead of this machine's: {told}", **measured)
