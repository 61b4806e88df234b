"""Teams: whose turn it is, who must make room, and who may spend no more."""

from __future__ import annotations

import heapq
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superdl.coordinator.core import (
    ExecutorFacts,
    JobOpened,
    Plan,
    Prices,
    Team,
    TeamsChanged,
)
from superdl.coordinator.core.journal import Cause
from superdl.coordinator.core.teams import Teams
from superdl.super_wire.errors import ConfigError
from tests.coordinator.core.driver import Driver


def serve(teams: Teams, requests_s: dict[str, float], places: int, *, until_s: float) -> dict[str, float]:
    """Teams whose requests take so long always want more; the functions' seconds that each has had."""
    running: list[Any] = []
    now, made = 0.0, 0
    had_s = dict.fromkeys(requests_s, 0.0)
    while now < until_s:
        while len(running) < places:
            name = min(requests_s, key=teams.turn)
            made += 1
            heapq.heappush(
                running, (now + requests_s[name], made, name, teams.began(name, 8, capacity=places))
            )
        now, _, name, expected_s = heapq.heappop(running)
        teams.ended(name, 8, requests_s[name], expected_s=expected_s)
        had_s[name] += requests_s[name]
    for _, _, name, expected_s in running:
        teams.ended(name, 8, requests_s[name], expected_s=expected_s)
    return had_s


@given(
    st.lists(st.tuples(st.integers(1, 6), st.floats(0.02, 0.5)), min_size=2, max_size=4), st.integers(1, 40)
)
def test_teams_that_want_more_have_the_functions_time_by_their_shares(drawn, places):
    shares = {f"team-{number}": share for number, (share, _) in enumerate(drawn)}
    requests_s = dict(zip(shares, (took_s for _, took_s in drawn), strict=True))
    teams = Teams([Team(name, share) for name, share in shares.items()])
    # Long enough that one request more or less is within a tenth of the least share.
    had_s = serve(teams, requests_s, places, until_s=120.0)
    for name, share in shares.items():
        assert had_s[name] / sum(had_s.values()) == pytest.approx(share / sum(shares.values()), rel=0.1), (
            had_s
        )


def test_a_team_that_was_away_saves_up_two_seconds_of_its_share_and_no_more():
    teams = Teams([Team("a", 1), Team("b", 1)])
    assert serve(teams, {"a": 0.1}, 8, until_s=100.0)["a"] > 700.0
    had_s = serve(teams, {"a": 0.1, "b": 0.1}, 8, until_s=100.0)
    assert 0.0 < had_s["b"] - had_s["a"] <= 2 * 2 * 8 + 1


def test_shares_that_change_hold_from_then_on():
    teams = Teams([Team("a"), Team("b")])
    serve(teams, {"a": 0.1, "b": 0.1}, 8, until_s=20.0)
    teams.change([Team("a", share=7.0)])
    had_s = serve(teams, {"a": 0.1, "b": 0.1}, 8, until_s=100.0)
    assert had_s["a"] == pytest.approx(7 * had_s["b"], rel=0.05)


def test_a_higher_priority_leaves_what_it_does_not_want():
    teams = Teams([Team("a", priority=1), Team("b", share=100)])
    assert serve(teams, {"a": 0.1, "b": 0.1}, 4, until_s=9.0)["b"] == 0.0
    assert serve(teams, {"b": 0.1}, 4, until_s=9.0)["b"] > 30.0


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"name": "a b"}, "a team's name has 1 to 64 letters"),
        ({"name": "a", "share": 0.0}, "share is from 0.001 to"),
        ({"name": "a", "share": math.nan}, "share is from"),
        ({"name": "a", "priority": 2000}, "priority is from -1000 to 1000"),
        ({"name": "a", "max_usd": -1.0}, "max_usd is from 0"),
    ],
)
def test_what_no_team_may_have_is_refused_by_name(facts, reason):
    with pytest.raises(ConfigError, match=reason):
        Team(**facts)


def open_as(driver: Driver, team: str, job: str, *, seed: int = 0) -> None:
    plan = Plan(driver.size, batch_size=8, seed=seed)
    driver.step(JobOpened(job, driver.dataset, plan, 0, team=team))


PRICED = (ExecutorFacts("priced", Prices(invocation=1.0)),)


def test_a_team_that_may_spend_no_more_is_told_so_and_others_go_on():
    driver = Driver(
        size=256, capacity=2, request_samples=8, executors=PRICED, teams=(Team("a", max_usd=3.0),)
    )
    open_as(driver, "a", "one")
    while driver.requests:
        driver.answer(driver.requests[0])
    assert driver.state.teams["a"].usd == 3.0
    driver.ask(0, 10, job="one")
    driver.read(0, job="one")
    driver.read(5, job="one", missed=tuple(range(8)))
    [tombstones] = driver.tombstones
    assert tombstones.indices.size == 8
    assert "the requests of team a have cost 3.0000 USD, and its max_usd is 3" in tombstones.messages[0]
    driver.read(5, job="one", hits=0, wait_us=7)
    assert driver.core.job("one").stalls.batches == {Cause.SPENDING: 1}
    assert not driver.requests
    assert driver.warnings[-1].message == tombstones.messages[0]
    driver.step(TeamsChanged(()))
    assert not driver.requests, "a team that is not named any more keeps its cap"
    open_as(driver, "b", "two", seed=1)
    assert driver.requests, "another team's job goes on"
    before = driver.state.teams["a"].requests
    while driver.requests:
        driver.answer(driver.requests[0])
    driver.read(6, job="one", missed=tuple(range(8)))
    assert driver.requests or driver.state.teams["b"].requests
    assert len(driver.tombstones) == 1, "what another team reads too is no reader's failure"
    assert driver.state.teams["a"].requests == before, "and goes on that team's account"
    assert driver.state.teams["a"].usd == 3.0


def test_what_was_spent_before_a_restart_counts():
    driver = Driver(executors=PRICED, teams=(Team("a", max_usd=3.0),), teams_usd={"a": 2.5})
    open_as(driver, "a", "one")
    assert not driver.requests
    driver.step(TeamsChanged((Team("a", max_usd=9.0),)))
    assert driver.requests, "a higher cap is heeded at once"
