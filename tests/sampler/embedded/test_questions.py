"""What a question holds before there is a sampler: one coordinator for both, none in the way of another run.

And variables that are set later: the next sampler's coordinator has them.
"""

from __future__ import annotations

import pytest

from superdl.sampler.embedded import embedded as module
from superdl.sampler.embedded.embedded import embedded_for, question_answered, release_all
from superdl.sampler.embedded.supervisor_settings import SupervisorSettings


@pytest.fixture(autouse=True)
def of_tests(supervised, monkeypatch):
    monkeypatch.setattr(SupervisorSettings, "of_this_host", supervised.settings)
    yield
    release_all()


def ask(run):
    """A question and its answer."""
    hold = embedded_for(run, for_question=True)
    question_answered(hold.coordinator)
    return hold


def test_a_sampler_takes_what_the_questions_before_it_hold(supervised):
    hold = ask(supervised.run)
    assert ask(supervised.run) is embedded_for(supervised.run) is hold
    supervisor = supervised.processes()["supervisor"]
    for question in (1, 2):  # their time is up
        hold.let_go_after(question)
    assert not hold.is_over
    assert supervised.processes()["supervisor"] == supervisor


def test_it_is_let_go_of_after_the_last_of_the_questions(supervised):
    hold = ask(supervised.run)
    assert embedded_for(supervised.run, for_question=True) is hold
    hold.let_go_after(1)
    assert not hold.is_over, "the second is not answered yet"
    question_answered(hold.coordinator)
    hold.let_go_after(1)
    assert not hold.is_over, "its own time is not up yet"
    supervised.processes()
    hold.let_go_after(2)
    supervised.assert_all_gone()
    assert embedded_for(supervised.run) is not hold
    assert set(supervised.processes()) == {"supervisor", "cache", "coordinator"}


def test_in_time_it_is_let_go_of(supervised, monkeypatch):
    monkeypatch.setattr(module, "QUESTION_HOLD_S", 0.0)
    hold = embedded_for(supervised.run, for_question=True)
    supervised.processes()
    question_answered(hold.coordinator)
    supervised.assert_all_gone()


def test_it_is_not_in_the_way_of_a_run_that_got_its_id_later(supervised):
    ask(supervised.run)
    supervised.processes()
    embedded_for(f"{supervised.run}, renamed")
    supervised.assert_all_gone()


def test_credentials_that_are_set_later_are_used(supervised, monkeypatch):
    hold = embedded_for(supervised.run)
    supervised.processes()
    monkeypatch.setenv("AWS_SESSION_TOKEN", "later")
    renewed = embedded_for(supervised.run)
    assert hold.is_over
    assert embedded_for(supervised.run) is renewed
    assert supervised.processes()["coordinator"].environ()["AWS_SESSION_TOKEN"] == "later"
    hold.let_go_after(0)
    assert not renewed.is_over


def test_where_other_ranks_hold_it_they_are_told_of(supervised, monkeypatch, caplog):
    supervised.await_rank(supervised.start_rank())
    embedded_for(supervised.run)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "later")
    embedded_for(supervised.run)
    assert "AWS_SESSION_TOKEN: changed since the embedded coordinator was started" in caplog.text
    assert "later" not in caplog.text
