"""Which executor gets a request: the cheapest that has a place, unless what can wait is worth waiting."""

from __future__ import annotations

import math

import pytest

from superdl.coordinator.core.events import ExecutorResized
from superdl.coordinator.core.fleet import Deadline, EligibleExecutors, Fleet, pick
from superdl.coordinator.core.settings import ExecutorFacts
from superdl.coordinator.core.teams import NO_TEAM, Teams


def fleet_of(*capacities: int) -> Fleet:
    fleet = Fleet([ExecutorFacts(f"executor-{number}") for number in range(len(capacities))])
    for executor, capacity in zip(fleet.executors, capacities, strict=True):
        executor.concurrency.resize(ExecutorResized(capacity, backlog=0), 0.0)
    return fleet


def eligible_for(*capacities: int) -> EligibleExecutors:
    return fleet_of(*capacities).eligible(frozenset())


def learn(eligible: EligibleExecutors, *seconds: float) -> None:
    """Requests take so long at each, whatever they carry."""
    for executor, one_s in zip(eligible.executors, seconds, strict=False):
        for _ in range(20):
            executor.latency.observe(8, one_s, one_s)


def picked(eligible: EligibleExecutors, now: float, slack_s=0.0, samples=1, **but) -> str | None:
    executor, _ = pick(eligible, Deadline(slack_s, samples=samples), now, **but)
    return None if executor is None else executor.name


def test_what_can_wait_is_kept_for_the_cheaper():
    eligible = eligible_for(1, 8)
    learn(eligible, 2.0, 0.5)
    eligible.executors[0].in_flight = 1
    assert picked(eligible, 0.0, slack_s=2.4, samples=8) == "executor-1"
    nobody, in_s = pick(eligible, Deadline(2.6, samples=8), 0.0)
    assert nobody is None
    assert in_s == pytest.approx(0.1)
    assert picked(eligible, 0.0, slack_s=2.6 - in_s - 1e-3, samples=8) == "executor-1"


def test_what_has_failed_at_the_cheaper_waits_for_it_no_more():
    eligible = eligible_for(8, 8)
    learn(eligible, 2.0, 0.5)
    assert picked(eligible, 0.0, slack_s=60.0, samples=8) == "executor-0"
    assert picked(eligible, 0.0, slack_s=60.0, samples=8, failed_by=0) == "executor-1"
    eligible.executors[1].in_flight = 8
    assert pick(eligible, Deadline(60.0, samples=8), 0.0, failed_by=0) == (None, math.inf)
    eligible.executors[1].breaker.refused("gone", 0.0, 0.0)
    assert picked(eligible, 0.0, slack_s=60.0, samples=8, failed_by=0) == "executor-0"


def test_where_all_are_set_aside_no_pause_is_long():
    eligible = eligible_for(4, 8)
    for executor in eligible.executors:
        for number in range(8):
            executor.breaker.refused("gone", 100.0 * number, 100.0 * number)
    assert eligible.places(701.0) == 0
    assert sorted(eligible.wake_times_s(701.0)) == [705.0, 705.0]
    assert picked(eligible, 705.0) == "executor-0"


def test_the_only_one_that_can_produce_a_dataset_is_never_set_aside_for_it():
    fleet = fleet_of(4, 8)
    fleet.executors[0].breaker.refused("throttled", 1.0, 1.0)
    only, both = fleet.eligible(frozenset({1})), fleet.eligible(frozenset())
    assert only.places(1.0) == 4
    assert picked(only, 1.0) == "executor-0"
    assert not only.can_turn_elsewhere(fleet.executors[0])
    assert both.places_of(fleet.executors[0], 1.0) == 0


def test_a_rival_runs_elsewhere_if_it_can():
    eligible = eligible_for(4, 1)
    assert picked(eligible, 0.0, other_than=0) == "executor-1"
    eligible.executors[1].in_flight = 1
    assert picked(eligible, 0.0, other_than=0) == "executor-0"


def test_of_several_groups_the_one_with_the_earliest_deadline_goes_first():
    fleet = fleet_of(1, 1)
    late, soon = fleet.eligible(frozenset()), fleet.eligible(frozenset({1}))
    turn = Teams().turn

    def soonest():
        found = fleet.soonest(0.0, turn)
        return found and (found.ranks, found.deadline_s)

    assert soonest() is None
    late.ready[NO_TEAM].add(("a", 0), 5.0)
    soon.ready[NO_TEAM].add(("b", 0), 3.0)
    assert soonest() == (soon.ready[NO_TEAM], 3.0)
    fleet.executors[0].in_flight = 1
    assert soonest() == (late.ready[NO_TEAM], 5.0), "the other has no place"
