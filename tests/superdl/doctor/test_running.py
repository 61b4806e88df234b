"""Checks run in their order, within their time, and not at all where what they build on has failed."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from superdl.coordinator.server.settings import Settings
from superdl.doctor import Verdict
from superdl.doctor.case import Case, Seen
from superdl.doctor.checks import CHECKS
from superdl.doctor.finding import bad, combined, doubtful, good, size_text, skipped
from superdl.doctor.running import Check, run_checks
from superdl.super_wire.errors import CacheError
from superdl.super_wire.recipe import Recipe

CASE = Case(settings=Settings(), recipe=Recipe.image(crop=32))


def run(*checks: Check, seen: Seen | None = None):
    return list(run_checks(checks, CASE, seen or Seen()))


def test_each_need_comes_before():
    names = [check.name for check in CHECKS]
    assert len(set(names)) == len(names)
    for check in CHECKS:
        assert set(check.needs) <= set(names[: names.index(check.name)]), check.name


def test_what_builds_on_a_failure_is_skipped_and_names_it():
    first, second, third, apart = run(
        Check("first", lambda _case, _seen: bad("broken", "mend it")),
        Check("second", lambda _case, _seen: good("never looked at"), needs=("first",)),
        Check("third", lambda _case, _seen: good("neither"), needs=("second",)),
        Check("apart", lambda _case, _seen: good("fine")),
    )
    assert first.verdict is Verdict.BAD
    assert second.verdict is third.verdict is Verdict.SKIPPED
    assert "'first' has failed" in second.reason
    assert "'first' has failed" in third.reason
    assert apart.verdict is Verdict.GOOD


@pytest.mark.parametrize("found", [doubtful("so so", "perhaps"), skipped("not now")])
def test_doubts_and_skips_hold_nothing_up(found):
    _, after = run(
        Check("first", lambda _case, _seen: found), Check("after", lambda _c, _s: good("looked"), ("first",))
    )
    assert after.verdict is Verdict.GOOD


def test_a_check_that_hangs_is_given_up():
    release = threading.Event()

    def hang(_case, _seen):
        release.wait(60)
        return good("late")

    hung, after = run(
        Check("hangs", hang, limit_s=0.05), Check("after", lambda _case, _seen: good("went on"))
    )
    release.set()
    assert hung.verdict is Verdict.BAD
    assert "0.05 s" in hung.reason
    assert "firewall" in hung.remedy
    assert after.verdict is Verdict.GOOD


def test_what_a_role_elsewhere_does_keeps_nothing_else_from_being_looked_at():
    checks = (
        Check("listing", lambda _case, _seen: bad("refused", "allow it"), by_role=True),
        Check("object", lambda _case, _seen: good("got"), needs=("listing",), by_role=True),
        Check("sample", lambda _case, _seen: good("came"), needs=("listing",)),
    )
    assert [one.verdict for one in run(*checks)] == [Verdict.BAD, Verdict.SKIPPED, Verdict.SKIPPED]
    elsewhere = replace(CASE, coordinator="coordinator:50051")
    found = list(run_checks(checks, elsewhere, Seen()))
    assert [one.verdict for one in found] == [Verdict.BAD, Verdict.SKIPPED, Verdict.GOOD]


def test_silence_where_a_role_elsewhere_asks_is_a_doubt():
    release = threading.Event()
    check = Check("listing", lambda _c, _s: good(str(release.wait(60))), limit_s=0.05, by_role=True)
    (found,) = run_checks([check], replace(CASE, coordinator="coordinator:50051"), Seen())
    (here,) = run_checks([check], CASE, Seen())
    release.set()
    assert (found.verdict, here.verdict) == (Verdict.DOUBTFUL, Verdict.BAD)


def test_errors_are_findings():
    def ours(_case, _seen):
        raise CacheError("the cache at x refuses")

    def a_bug(_case, _seen):
        raise KeyError("what")

    refused, bug = run(Check("refused", ours), Check("bug", a_bug))
    assert (refused.verdict, refused.reason) == (Verdict.BAD, "CacheError: the cache at x refuses")
    assert bug.verdict is Verdict.BAD
    assert "KeyError" in bug.reason
    assert "bug" in bug.remedy


def test_what_was_opened_is_closed_even_if_nobody_listens_to_the_end():
    seen, closed = Seen(), []
    seen.closing.callback(closed.append, "closed")
    findings = run_checks(
        [Check("one", lambda _c, _s: good("a")), Check("two", lambda _c, _s: good("b"))], CASE, seen
    )
    next(findings)
    findings.close()
    assert closed == ["closed"]


def test_several_looks_are_one_finding():
    found = combined([good("a", x=1), bad("b", "mend b"), skipped("c", "name c")])
    assert found.verdict is Verdict.BAD
    assert (found.reason, found.remedy, found.measured) == ("a; b; c", "mend b; name c", {"x": 1})
    assert combined([skipped("c"), good("a")]).verdict is Verdict.GOOD


@pytest.mark.parametrize(
    ("size", "text"), [(1023, "1,023 bytes"), (2048, "2 KiB"), (3 * 2**40, "3,072.00 GiB")]
)
def test_sizes(size, text):
    assert size_text(size) == text


def test_no_finding_tells_a_password_in_an_address():
    def refused(_case, _seen):
        raise CacheError("cannot connect to http://u:hunter2@host:1/x and 'rediss://:hunter2@cache'")

    check = Check("b", lambda _c, _s: bad("x (http://u:hun/ter2@host)", "ask http://u:hunter2@host"))
    first, second = run(Check("a", refused), check)
    assert first.reason == "CacheError: cannot connect to http://***@host:1/x and 'rediss://***@cache'"
    assert (second.reason, second.remedy) == ("x (http://***@host)", "ask http://***@host")
    (third,) = run(Check("c", lambda _c, _s: bad("s3://bucket/a@b.jpg is empty", "")))
    assert third.reason == "s3://bucket/a@b.jpg is empty"
