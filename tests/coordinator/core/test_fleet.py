"""Which executor gets a request: the cheapest that has a place, unless what can wait is worth waiting."""

from __future__ import annotations

import math

import pytest

from coordinator.core.fleet import Fleet


def fleet_of(*capacities: int) -> Fleet:
    fleet = Fleet([f"executor-{number}" for number in range(len(capacities))])
    for member, capacity in zip(fleet.members, capacities, strict=True):
        member.concurrency.resize(capacity, backlog=0, burst=None, per_s=math.inf, now=0.0)
    return fleet


def learn(fleet: Fleet, *seconds: float) -> None:
    """Requests take so long at each, whatever they carry."""
    for member, one_s in zip(fleet.members, seconds, strict=True):
        for _ in range(20):
            member.latency.observe(8, one_s, one_s)


def name_of(member) -> str | None:
    return None if member is None else member.name


def test_the_cheapest_with_a_place_is_taken():
    fleet = fleet_of(2, 8)
    chosen = []
    for _ in range(11):
        member = fleet.choose(0.0)
        chosen.append(name_of(member))
        if member:
            member.in_flight += 1
    assert chosen == ["executor-0"] * 2 + ["executor-1"] * 8 + [None]
    assert fleet.places(0.0) == 0


def test_what_can_wait_is_kept_for_the_cheaper():
    fleet = fleet_of(1, 8)
    learn(fleet, 2.0, 0.5)
    fleet.members[0].in_flight = 1
    assert name_of(fleet.choose(0.0, slack_s=2.4, samples=8)) == "executor-1"
    assert fleet.choose(0.0, slack_s=2.6, samples=8) is None
    in_s = fleet.hasty_in_s(0.0, slack_s=2.6, samples=8, unfit=())
    assert in_s == pytest.approx(0.1)
    assert name_of(fleet.choose(0.0, slack_s=2.6 - in_s - 1e-3, samples=8)) == "executor-1"


def test_before_it_is_known_how_long_requests_take_what_is_wanted_first_does_not_wait():
    fleet = fleet_of(1, 8)
    fleet.members[0].in_flight = 1
    assert name_of(fleet.choose(0.0, slack_s=1e6)) == "executor-1"
    assert fleet.choose(0.0, slack_s=0.0, soon=False) is None
    assert fleet.hasty_in_s(0.0, slack_s=0.0, samples=8, unfit=()) is None


def test_nobody_waits_for_an_executor_that_takes_nothing():
    fleet = fleet_of(0, 8)
    learn(fleet, 2.0, 0.5)
    assert name_of(fleet.choose(0.0, slack_s=1e6, samples=8)) == "executor-1"


def test_nobody_waits_for_one_that_was_set_aside():
    fleet = fleet_of(4, 8)
    learn(fleet, 2.0, 0.5)
    fleet.members[0].health.refused("gone", 10.0)
    assert name_of(fleet.choose(10.0, slack_s=1e6, samples=8)) == "executor-1"


def test_one_that_was_set_aside_is_tried_by_a_single_request():
    fleet = fleet_of(4, 8)
    first = fleet.members[0]
    first.health.refused("gone", 10.0)
    again_s = first.health.aside_until_s()
    assert name_of(fleet.choose(again_s - 0.01)) == "executor-1"
    assert name_of(fleet.choose(again_s)) == "executor-0"
    first.in_flight = 1
    assert name_of(fleet.choose(again_s)) == "executor-1"
    first.health.worked()
    assert fleet.places_of(first, again_s) == 3


def test_where_all_are_doubtful_no_pause_is_long():
    fleet = fleet_of(4, 8)
    for member in fleet.members:
        for number in range(8):
            member.health.refused("gone", 100.0 * number)
    assert fleet.places(701.0) == 0
    assert sorted(fleet.wake_times_s(701.0)) == [705.0, 705.0]
    assert name_of(fleet.choose(705.0)) == "executor-0"


def test_one_alone_is_never_set_aside():
    fleet = fleet_of(4)
    for now in range(20):
        fleet.members[0].health.refused("throttled", float(now))
    assert fleet.places(20.0) == 4
    assert name_of(fleet.choose(20.0)) == "executor-0"
    assert not fleet.can_turn_elsewhere(fleet.members[0])


def test_the_unfit_are_passed_over():
    fleet = fleet_of(4, 8)
    assert name_of(fleet.choose(0.0, unfit={0})) == "executor-1"
    assert fleet.choose(0.0, unfit={0, 1}) is None
    assert not fleet.can_turn_elsewhere(fleet.members[0], unfit={1})


def test_a_rival_runs_elsewhere_if_it_can():
    fleet = fleet_of(4, 1)
    assert name_of(fleet.choose(0.0, other_than=0)) == "executor-1"
    fleet.members[1].in_flight = 1
    assert name_of(fleet.choose(0.0, other_than=0)) == "executor-0"


def test_looking_ahead_reckons_with_one_after_the_other():
    fleet = fleet_of(1, 8)
    assert fleet.slow_s(8) is None
    learn(fleet, 2.0, 0.5)
    assert fleet.slow_s(8) == pytest.approx(2.5)
