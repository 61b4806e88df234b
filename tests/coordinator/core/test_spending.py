"""Money and teams: jobs pay for their samples, caps hold, and shares and priorities decide turns."""

import heapq
import math
from dataclasses import asdict

import pytest

from superdl.coordinator.core import ExecutorFacts, JobOpened, Plan, Prices, Team, TeamsChanged
from superdl.coordinator.core.journal import Cause
from superdl.coordinator.core.ledger import NOBODY, Ledger, Spending, Teams
from tests.coordinator.core.driver import Driver

PRICES = Prices(invocation=1.0, gb_s=2.0, source_request=0.5, source_gb=4.0, record_gb=8.0)


def ledger(prices=PRICES, *, max_usd=math.inf, max_usd_per_hour=math.inf):
    book = Ledger([prices], max_usd=max_usd, max_usd_per_hour=max_usd_per_hour)
    book.settle(0.0)
    return book


def invoke(book, dataset=b"a", *, now=0.0, gb_s=0.0, executor=0):
    counted = {"source_requests": 0, "source_bytes": 0, "record_bytes": 0}
    return book.bill_invocation(dataset, executor=executor, gb_s=gb_s, now=now, **counted)


def freedom(book, in_flight):
    book.update(in_flight, 0.0)
    return book.spending


def test_each_unit_is_billed_at_its_price():
    book = Ledger(
        [Prices(1.0, 2.0, 0.5, 4.0, 8.0, 16.0, hour=3600.0, coordinator_hour=900.0)],
        max_usd=math.inf,
        max_usd_per_hour=math.inf,
        spent_usd=7.0,
    )
    book.settle(0.0)
    units = {"source_requests": 4, "source_bytes": 2**29, "record_bytes": 2**28}
    usd = book.bill_invocation(b"a", gb_s=3.0, **units, now=0.0, store_gets=2, store_puts=1)
    assert usd == 1 + 6 + 2 + 2 + 2 + (1 + 16)
    book.settle(4.0)
    assert asdict(book.spent()) == {
        "functions_usd": 7.0,
        "source_requests_usd": 2.0,
        "store_requests_usd": 17.0,
        "transfer_usd": 4.0,
        "cache_usd": 3.0,
        "coordinator_usd": 1.0,
        "trainers_usd": 0.0,
        "earlier_usd": 7.0,
    }
    assert book.total_usd == 41.0


def test_costs_of_shared_samples_are_split_by_samples_read():
    book = ledger()
    book.add_produced(b"a", "one", 100, invoke(book))
    book.add_read(b"a", "one", 100, 0, 0.0)
    assert book.job_costs("one").usd == 1.0
    book.add_read(b"a", "two", 100, 0, 1.0)
    assert book.job_costs("one").usd == book.job_costs("two").usd == 0.5
    book.add_produced(b"b", "two", 10, invoke(book, b"b"))
    assert (book.job_costs("one").usd, book.job_costs("two").usd) == (0.5, 1.5)


def test_hourly_costs_are_split_among_the_jobs_present():
    book = ledger(Prices(hour=3600.0))
    book.settle(1.0)
    book.add_job("one")
    book.settle(3.0)
    book.add_job("two")
    book.settle(7.0)
    book.remove_job("one")
    book.settle(8.0)
    assert book.job_costs(NOBODY).usd == 1.0
    assert book.job_costs("one").usd == 2.0 + 2.0
    assert book.job_costs("two").usd == 2.0 + 1.0
    assert book.total_usd == 8.0


def test_near_the_cap_spending_slows_and_at_the_cap_it_stops():
    book = ledger(max_usd=10.0)
    for _ in range(8):
        book.add_produced(b"a", "one", 10, invoke(book))
    assert freedom(book, [(0, 0)]) is Spending.FREELY
    assert freedom(book, [(1, 10)]) is Spending.SLOWED, "requests in flight count as spent"
    assert freedom(book, [(2, 20)]) is Spending.STOPPED
    invoke(book)
    invoke(book)
    assert freedom(book, [(0, 0)]) is Spending.STOPPED


def test_beyond_the_hourly_cap_spending_slows_for_a_while():
    book = ledger(max_usd_per_hour=3600.0)
    for _ in range(310):
        invoke(book)
    assert freedom(book, [(0, 0)]) is Spending.SLOWED
    freely_s = book.freely_at_s(0.0, [(0, 0)])
    assert freely_s == pytest.approx(10.0, abs=0.1)
    book.settle(freely_s)
    assert freedom(book, [(0, 0)]) is Spending.FREELY
    assert book.freely_at_s(freely_s, [(0, 0)]) is None


def serve(teams, requests_s, places, *, until_s):
    """Serve teams that always want more requests of these lengths. Return the function seconds of each."""
    running = []
    now, started = 0.0, 0
    had_s = dict.fromkeys(requests_s, 0.0)
    while now < until_s:
        while len(running) < places:
            name = min(requests_s, key=teams.turn)
            started += 1
            heapq.heappush(
                running, (now + requests_s[name], started, name, teams.began(name, 8, capacity=places))
            )
        now, _, name, expected_s = heapq.heappop(running)
        teams.ended(name, 8, requests_s[name], expected_s=expected_s)
        had_s[name] += requests_s[name]
    for _, _, name, expected_s in running:
        teams.ended(name, 8, requests_s[name], expected_s=expected_s)
    return had_s


def test_an_idle_team_accumulates_at_most_two_seconds_of_its_share():
    teams = Teams([Team("a", 1), Team("b", 1)])
    assert serve(teams, {"a": 0.1}, 8, until_s=100.0)["a"] > 700.0
    had_s = serve(teams, {"a": 0.1, "b": 0.1}, 8, until_s=100.0)
    assert 0.0 < had_s["b"] - had_s["a"] <= 2 * 2 * 8 + 1


def test_changed_shares_take_effect_at_once():
    teams = Teams([Team("a"), Team("b")])
    serve(teams, {"a": 0.1, "b": 0.1}, 8, until_s=20.0)
    teams.change([Team("a", share=7.0)])
    had_s = serve(teams, {"a": 0.1, "b": 0.1}, 8, until_s=100.0)
    assert had_s["a"] == pytest.approx(7 * had_s["b"], rel=0.05)


def open_as(driver, team, job, *, seed=0):
    plan = Plan(driver.size, batch_size=8, seed=seed)
    driver.step(JobOpened(job, driver.dataset, plan, 0, team=team))


PRICED = (ExecutorFacts("priced", Prices(invocation=1.0)),)


def test_a_team_at_its_cap_is_refused_and_others_continue():
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
    assert "production has stopped for team a: its requests have cost 3.0000 USD" in tombstones.messages[0]
    driver.read(5, job="one", hits=0, wait_us=7)
    assert driver.core.job("one").stalls.batches == {Cause.LIMITS: 1}
    assert not driver.requests
    assert driver.warnings[-1].message == tombstones.messages[0]
    driver.step(TeamsChanged(()))
    assert not driver.requests, "a team removed from the settings keeps its cap"
    open_as(driver, "b", "two", seed=1)
    assert driver.requests, "another team's job continues"
    before = driver.state.teams["a"].requests
    while driver.requests:
        driver.answer(driver.requests[0])
    driver.read(6, job="one", missed=tuple(range(8)))
    assert driver.requests or driver.state.teams["b"].requests
    assert len(driver.tombstones) == 1, "samples shared with another team get no tombstone"
    assert driver.state.teams["a"].requests == before, "shared samples are charged to the other team"
    assert driver.state.teams["a"].usd == 3.0


def test_a_teams_spending_before_a_restart_counts():
    driver = Driver(executors=PRICED, teams=(Team("a", max_usd=3.0),), teams_usd={"a": 2.5})
    open_as(driver, "a", "one")
    assert not driver.requests
    driver.step(TeamsChanged((Team("a", max_usd=9.0),)))
    assert driver.requests, "a raised cap takes effect at once"
