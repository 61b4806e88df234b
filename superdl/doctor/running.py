"""Runs checks one after the other: each within its time, and none whose ground has fallen already.

What a check looks at is the other modules'; which there are, and in which order,
:mod:`superdl.doctor.checks`'.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from superdl.doctor.finding import Finding, Found, Verdict, bad, doubtful, skipped
from superdl.super_wire.errors import CacheUnreachableError, CoordinatorUnreachableError, SuperError
from superdl.super_wire.redaction import text_without_credentials

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from superdl.doctor.case import Case, Seen

__all__ = ["Check", "run_checks", "within"]

_Value = TypeVar("_Value")

_log = logging.getLogger(__name__)

_CLOSING_S = 20.0
_NOT_EVERYWHERE = ("torch", "PIL")
_UNREACHABLE = (CacheUnreachableError, CoordinatorUnreachableError)
_UNREACHED = (
    "see that it runs, that host and port are right, and that firewall and security group let this machine in"
)
_SILENCE = (
    "what drops packets without a word looks like this: a firewall, a security group, a route that leads "
    "nowhere, a name server that does not answer"
)


@dataclass(frozen=True, slots=True)
class Check:
    """One thing to look at.

    ``needs`` are checks without whose success it can tell nothing. ``limit_s`` is the time that it may take,
    0 for the case's own patience and a little more. ``by_role`` says that with a coordinator elsewhere it is
    that one's role which does this in earnest, from another place: then no more than doubt follows from
    silence, and its failure keeps only others of this kind from being looked at.
    """

    name: str
    look: Callable[[Case, Seen], Found]
    needs: tuple[str, ...] = ()
    limit_s: float = 30.0
    by_role: bool = False


def run_checks(
    checks: Sequence[Check], case: Case, seen: Seen, begun: Callable[[str], None] = lambda _: None
) -> Iterator[Finding]:
    """Findings, each as soon as it is there; what was opened is closed at the end.

    ``begun`` is told the name of each check that is looked at.
    """
    failed: dict[str, str] = {}  # check: the one that is to blame
    by_role = {check.name for check in checks if check.by_role and case.elsewhere}
    try:
        for check in checks:
            needs = [need for need in check.needs if need not in by_role or check.by_role]
            blamed = next((failed[need] for need in needs if need in failed), "")
            began_s = time.monotonic()
            if blamed:
                found = skipped(f"not looked at, because the check {blamed!r} has failed")
            else:
                begun(check.name)
                found = _looked(check.limit_s or case.patience_s + 30.0, check, case, seen)
            if blamed or found.verdict is Verdict.BAD:
                failed[check.name] = blamed or check.name
            seconds = round(time.monotonic() - began_s, 3)
            reason, remedy = map(text_without_credentials, (found.reason, found.remedy))
            yield Finding(check.name, found.verdict, reason, remedy, seconds, found.measured)
    finally:
        failure = within(_CLOSING_S, seen.closing.close)
        if isinstance(failure, BaseException):
            _log.warning("what the checks opened could not be closed: %s", failure)


def _looked(limit_s: float, check: Check, case: Case, seen: Seen) -> Found:
    """What the check finds, or that it found nothing in time."""
    found = within(limit_s, lambda: check.look(case, seen))
    if found is None:
        worst = doubtful if check.by_role and case.elsewhere else bad
        return worst(f"it came to no end within {limit_s:g} s", _SILENCE)
    if isinstance(found, SuperError):
        remedy = _UNREACHED if isinstance(found, _UNREACHABLE) else ""  # the others' words have one
        return bad(f"{type(found).__name__}: {found}", remedy)
    lacking = (found.name or "").partition(".")[0] if isinstance(found, ModuleNotFoundError) else ""
    if lacking in _NOT_EVERYWHERE:
        why = f"it needs {lacking}, which is not installed here, as on a coordinator's machine"
        return skipped(why, "run superdl doctor where trainers run, too")
    if isinstance(found, BaseException):
        return bad(
            f"the check itself failed: {type(found).__name__}: {found}",
            "this is a bug of superdl doctor: tell us",
        )
    return found


def within(limit_s: float, work: Callable[[], _Value]) -> _Value | BaseException | None:
    """What ``work`` gives or raises; ``None`` where that takes longer. Its thread is then left to itself, and
    keeps this process from ending no more than it keeps its caller.
    """
    answers: queue.SimpleQueue[_Value | BaseException] = queue.SimpleQueue()

    def run() -> None:
        try:
            answers.put(work())
        except BaseException as error:  # noqa: BLE001  # told by whoever waits
            answers.put(error)

    threading.Thread(target=run, name="superdl-doctor", daemon=True).start()
    try:
        return answers.get(timeout=limit_s)
    except queue.Empty:
        return None
