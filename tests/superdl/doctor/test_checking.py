"""Checks run in order and within their time limit, and are skipped if one that they need has failed."""

import threading

from superdl.coordinator.server.settings import Settings
from superdl.doctor import Case, Check, CheckStatus, run_checks
from superdl.doctor.checking import bad, doubtful, good
from superdl.super_wire.recipe import Recipe


def case(**named):
    return Case(settings=Settings(), recipe=Recipe.image(crop=32), **named)


def run(*checks, **named):
    return list(run_checks(checks, case(**named)))


def test_what_builds_on_a_failure_is_skipped_and_names_it():
    first, second, third, apart, after = run(
        Check("first", lambda _: bad("broken", "mend it")),
        Check("second", lambda _: good("never looked at"), needs=("first",)),
        Check("third", lambda _: good("neither"), needs=("second",)),
        Check("apart", lambda _: doubtful("so so", "perhaps")),
        Check("after", lambda _: good("looked"), needs=("apart",)),
    )
    assert first.verdict is CheckStatus.BAD
    assert second.verdict is third.verdict is CheckStatus.SKIPPED
    assert "'first' failed" in second.reason
    assert "'first' failed" in third.reason
    assert apart.verdict is CheckStatus.DOUBTFUL
    assert after.verdict is CheckStatus.GOOD  # a doubt holds nothing up


def test_a_check_that_hangs_is_given_up():
    release = threading.Event()
    hangs = Check("hangs", lambda _: good(str(release.wait(60))), limit_s=0.05)
    hung, after = run(hangs, Check("after", lambda _: good("went on")))
    release.set()
    assert hung.verdict is CheckStatus.BAD
    assert "0.05 s" in hung.reason
    assert hung.remedy
    assert after.verdict is CheckStatus.GOOD
