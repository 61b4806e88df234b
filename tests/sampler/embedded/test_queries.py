"""Queries before a sampler exists share its coordinator and do not block other runs.

A coordinator is restarted if environment variables change before the next sampler.
"""

from dataclasses import replace

import pytest

from superdl.sampler.embedded.embedded import embedded_for, query_done, release_all
from superdl.sampler.embedded.settings import EmbeddedSettings, ExecutorChoice


@pytest.fixture(autouse=True)
def of_tests(embedded_run, monkeypatch):
    monkeypatch.setattr(EmbeddedSettings, "of_this_host", embedded_run.settings)
    yield
    release_all()


def query(run):
    """Run a query."""
    hold = embedded_for(run, for_query=True)
    query_done(hold.coordinator)
    return hold


def test_a_sampler_uses_the_coordinator_of_earlier_queries(embedded_run):
    hold = query(embedded_run.run)
    assert query(embedded_run.run) is embedded_for(embedded_run.run) is hold
    assert not hold.is_over


def test_a_shared_cache_is_released_after_the_last_query(embedded_run, monkeypatch, valkey):
    choice = ExecutorChoice("local", valkey.url, "in turn")
    settings = replace(embedded_run.settings(), choice=choice)
    monkeypatch.setattr(EmbeddedSettings, "of_this_host", lambda: settings)
    hold = embedded_for(embedded_run.run, for_query=True)
    assert query(embedded_run.run) is hold
    assert not hold.is_over, "the first is not answered yet"
    query_done(hold.coordinator)
    assert hold.is_over
    sampler = embedded_for(embedded_run.run)
    assert query(embedded_run.run) is sampler
    assert not sampler.is_over


def test_queries_do_not_block_a_run_that_gets_its_id_later(embedded_run):
    query(embedded_run.run)
    embedded_run.processes()
    embedded_for(f"{embedded_run.run}, renamed")
    embedded_run.assert_all_gone()


def test_credentials_set_later_are_used(embedded_run, monkeypatch):
    hold = embedded_for(embedded_run.run)
    embedded_run.processes()
    monkeypatch.setenv("AWS_SESSION_TOKEN", "later")
    renewed = embedded_for(embedded_run.run)
    assert hold.is_over
    assert embedded_for(embedded_run.run) is renewed
    assert embedded_run.processes()["coordinator"].environ()["AWS_SESSION_TOKEN"] == "later"


def test_changed_variables_are_reported_if_other_ranks_keep_the_coordinator(
    embedded_run, monkeypatch, caplog
):
    embedded_run.await_rank(embedded_run.start_rank())
    embedded_for(embedded_run.run)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "later")
    embedded_for(embedded_run.run)
    assert "AWS_SESSION_TOKEN changed since the embedded coordinator was started" in caplog.text
    assert "later" not in caplog.text
