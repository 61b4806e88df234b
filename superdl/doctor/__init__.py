"""The checks of ``superdl doctor``. Each returns a finding with a reason and a remedy."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from superdl.doctor.checking import Case, Check, CheckStatus, Finding, OutOfTimeError, run_checks, within
from superdl.doctor.places import check_listing, check_store
from superdl.doctor.sample import check_all_samples, check_sample, check_shared_memory
from superdl.doctor.service import check_cache, check_coordinator, check_function
from superdl.super_wire.errors import BadSampleError, CacheError, CacheUnreachableError, ReadTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable

    from superdl.super_wire.recipe import Recipe

__all__ = ["ALL_SAMPLES", "CHECKS", "Case", "Check", "CheckStatus", "Finding", "preflight", "run_checks"]

_LIMIT_S = 5.0
_ANSWER_S = 0.5  # reserved for closing, besides the time of a sample
_FOR_A_SAMPLE = ("listing", "coordinator", "cache", "function")

# Each check follows those that it depends on.
CHECKS = (
    Check("listing", check_listing),
    Check("coordinator", check_coordinator),
    Check("cache", check_cache),
    Check("store", check_store, needs=("coordinator",)),
    Check("function", check_function, needs=("coordinator",), limit_s=210.0),
    Check("sample", check_sample, needs=_FOR_A_SAMPLE, limit_s=0.0),
    Check("shared memory", check_shared_memory),
)

# Runs only on request, because it takes as long as an epoch.
ALL_SAMPLES = Check("all samples", check_all_samples, needs=_FOR_A_SAMPLE, limit_s=1e7)


def preflight(
    source: str,
    recipe: Recipe,
    *,
    coordinator: str,
    key_list: str | None = None,
    notify: Callable[[str], object],
    sample: bool = True,
    allow_bad: bool = False,
) -> None:
    """Check the coordinator and the cache with this process's permissions.

    With ``sample``, also check the source and the function. All checks take at most 5 s. ``notify`` receives
    a line if no sample arrived in time but nothing failed. A bad sample is an error unless ``allow_bad``.

    Raises:
        SuperError: the error that the run would fail with, immediately or later.
    """
    from superdl.coordinator.server.settings import load_settings

    end_s = time.monotonic() + _LIMIT_S
    patience_s = _LIMIT_S - 2 * _ANSWER_S
    case = Case(
        load_settings({}, {}), recipe, source, key_list or "", coordinator=coordinator, patience_s=patience_s
    )

    def run_check(check: Callable[[Case], Finding]) -> None:
        finding = within(max(_ANSWER_S, end_s - time.monotonic()), partial(check, case))
        if finding.verdict is CheckStatus.BAD:
            raise CacheError(f"{finding.reason}; {finding.remedy}")

    with case.closing:
        for name, check in (("coordinator", check_coordinator), ("cache", check_cache)):
            try:
                run_check(check)
            except (OutOfTimeError, ReadTimeoutError) as error:
                raise CacheUnreachableError(f"the {name} did not respond in time: {error}") from error
        try:
            if sample:
                run_check(check_sample)
        except BadSampleError:
            # A bad sample proves that everything else works.
            if not allow_bad:
                raise
        except (OutOfTimeError, ReadTimeoutError):
            # A cold function may be slow.
            notify(
                f"no sample arrived within {_LIMIT_S:.0f} s, for an unknown reason: functions may be "
                "starting, or unable to reach source or cache. superdl doctor waits longer, and superdl "
                "stats shows the progress"
            )
