"""The checks' input, findings and runner. Each check maps a :class:`Case` to a :class:`Finding`."""

from __future__ import annotations

import contextlib
import enum
import logging
import threading
import time
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from superdl.super_wire.display import text_without_credentials
from superdl.super_wire.errors import CacheUnreachableError, CoordinatorUnreachableError, SuperError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from superdl.coordinator.server.settings import Settings
    from superdl.super_wire.coordinator_pb2 import Coordinating
    from superdl.super_wire.recipe import Recipe

_Value = TypeVar("_Value")

_log = logging.getLogger(__name__)

_CLOSING_S = 20.0
_NOT_EVERYWHERE = ("torch", "PIL")
_UNREACHABLE = (CacheUnreachableError, CoordinatorUnreachableError)
_UNREACHED = (
    "check that it is running, that host and port are right, and that firewall and security group allow this "
    "machine to connect"
)
_SILENCE = (
    "something may be dropping packets silently: a firewall, a security group, a route that leads nowhere, "
    "or a name server that does not respond"
)


class CheckStatus(enum.StrEnum):
    """The result of a check."""

    GOOD = "ok"
    # Training may or may not work.
    DOUBTFUL = "warn"
    BAD = "fail"
    # It could not be checked, for the stated reason.
    SKIPPED = "skip"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a check found. The runner fills in the check's name and duration."""

    check: str = ""
    verdict: CheckStatus
    reason: str
    remedy: str = ""
    seconds: float = 0.0


def _finding(verdict: CheckStatus, reason: str, remedy: str = "") -> Finding:
    """Return a finding. The remedy of a skipped check explains how to run it."""
    return Finding(verdict=verdict, reason=reason, remedy=remedy)


good = partial(_finding, CheckStatus.GOOD)
doubtful = partial(_finding, CheckStatus.DOUBTFUL)
bad = partial(_finding, CheckStatus.BAD)
skipped = partial(_finding, CheckStatus.SKIPPED)


def combined(findings: Sequence[Finding]) -> Finding:
    """Combine findings into one with the worst verdict, all reasons and all remedies."""
    order = (CheckStatus.BAD, CheckStatus.DOUBTFUL, CheckStatus.GOOD, CheckStatus.SKIPPED)
    return Finding(
        verdict=min((finding.verdict for finding in findings), key=order.index),
        reason="; ".join(finding.reason for finding in findings),
        remedy="; ".join(finding.remedy for finding in findings if finding.remedy),
    )


@dataclass(slots=True)
class Case:
    """The user's input and the results of checks. Missing values are empty, 0 or ``None``."""

    # How functions run, as in a coordinator's settings.
    settings: Settings
    recipe: Recipe
    source: str = ""
    key_list: str = ""
    coordinator: str = ""
    named_cache: str = ""
    named_store: str = ""
    # Limits the wait for the first sample, including a listing.
    patience_s: float = 120.0

    # Below: results, for later checks.
    coordinating: Coordinating | None = None
    store: str = ""
    cache: str = ""
    # Closed when all checks have ended.
    closing: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @property
    def elsewhere(self) -> bool:
        """Return whether a different identity reads the source and invokes functions."""
        return bool(self.coordinator)


@dataclass(frozen=True, slots=True)
class Check:
    """A single check."""

    name: str
    look: Callable[[Case], Finding]
    # Checks that must succeed for it to be meaningful.
    needs: tuple[str, ...] = ()
    # 0 means the case's own patience and a little more.
    limit_s: float = 30.0


def run_checks(checks: Sequence[Check], case: Case) -> Iterator[Finding]:
    """Run the checks in order and yield their findings. Close all opened resources at the end."""
    failed: dict[str, str] = {}  # by check: the failed check that caused it
    try:
        for check in checks:
            cause = next((failed[need] for need in check.needs if need in failed), "")
            began_s = time.monotonic()
            if cause:
                finding = skipped(f"not checked, because the check {cause!r} failed")
            else:
                finding = _result_of(check, case)
            if cause or finding.verdict is CheckStatus.BAD:
                failed[check.name] = cause or check.name
            yield replace(
                finding,
                check=check.name,
                reason=text_without_credentials(finding.reason),
                remedy=text_without_credentials(finding.remedy),
                seconds=round(time.monotonic() - began_s, 3),
            )
    finally:
        try:
            within(_CLOSING_S, case.closing.close)
        except Exception as error:  # noqa: BLE001  # the findings remain valid
            _log.warning("could not clean up after the checks: %s", error)


def _result_of(check: Check, case: Case) -> Finding:
    limit_s = check.limit_s or case.patience_s + 30.0
    try:
        return within(limit_s, lambda: check.look(case))
    except OutOfTimeError:
        return bad(f"did not finish within {limit_s:g} s", _SILENCE)
    except SuperError as error:
        remedy = _UNREACHED if isinstance(error, _UNREACHABLE) else ""  # other messages contain one
        return bad(f"{type(error).__name__}: {error}", remedy)
    except Exception as error:  # noqa: BLE001  # a bug in one check must not stop the others
        missing = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
        if missing in _NOT_EVERYWHERE:
            why = f"{missing} is not installed here, which is normal on a coordinator's machine"
            return skipped(why, "also run superdl doctor where trainers run")
        why = f"the check itself failed: {type(error).__name__}: {error}"
        return bad(why, "this is a bug in superdl doctor: please report it")


class OutOfTimeError(Exception):
    """The work took longer than its limit."""


def within(limit_s: float, work: Callable[[], _Value]) -> _Value:
    """Return the result of ``work``. On a timeout, raise ``OutOfTimeError`` and abandon its thread."""
    future: Future[_Value] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001  # raised in the caller
            future.set_exception(error)

    # A daemon does not block this process's exit.
    threading.Thread(target=run, name="superdl-doctor", daemon=True).start()
    if not wait([future], limit_s).done:
        raise OutOfTimeError(f"no result within {limit_s:g} s")
    return future.result()
