"""Checks of ``superdl run``, within 5 s, so that no epoch waits in vain."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from superdl.doctor.cache import check_cache, check_coordinator
from superdl.doctor.checking import Case, CheckStatus, OutOfTimeError, within
from superdl.doctor.sample import check_sample
from superdl.super_wire.errors import BadSampleError, CacheError, CacheUnreachableError, ReadTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable

    from superdl.super_wire.recipe import Recipe

__all__ = ["preflight"]

_LIMIT_S = 5.0
_ANSWER_S = 0.5  # reserved for closing, besides the time of a sample


def preflight(
    source: str,
    recipe: Recipe,
    *,
    coordinator: str,
    key_list: str | None = None,
    tell: Callable[[str], object],
    sample: bool = True,
    bad_may_come: bool = False,
) -> None:
    """Check coordinator and cache with this process's rights and, with ``sample``, source and function too.

    ``tell`` gets a line if no sample came in time without an error: a cold function may be slow. A bad sample
    proves that everything works; it ends a run unless ``bad_may_come``.

    Raises:
        SuperError: the run would end with this error, at once or later.
    """
    from superdl.coordinator.server.settings import load_settings

    began_s = time.monotonic()
    patience_s = _LIMIT_S - 2 * _ANSWER_S
    case = Case(
        load_settings({}, {}), recipe, source, key_list or "", coordinator=coordinator, patience_s=patience_s
    )
    checks = {"coordinator": check_coordinator, "cache": check_cache, "first sample": check_sample}
    try:
        for name, check in checks.items():
            if check is check_sample and not sample:
                continue
            left_s = max(_ANSWER_S, _LIMIT_S - (time.monotonic() - began_s))
            try:
                finding = within(left_s, partial(check, case))
            except BadSampleError:
                if not bad_may_come:
                    raise
                continue
            except (OutOfTimeError, ReadTimeoutError) as error:
                if check is not check_sample:
                    raise CacheUnreachableError(
                        f"the {name} did not answer within {left_s:.0f} s: {error}"
                    ) from error
                tell(
                    f"no sample came within {left_s:.0f} s, and nothing says why: functions may be starting, "
                    "or cannot reach source or cache; superdl doctor looks longer, superdl stats goes on"
                )
                continue
            if finding.verdict is CheckStatus.BAD:
                raise CacheError(f"{finding.reason}; {finding.remedy}")
    finally:
        case.closing.close()
