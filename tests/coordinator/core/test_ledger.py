"""Money: what is spent is borne by the jobs that used it, by part, and caps hold."""

from __future__ import annotations

import math
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superdl.coordinator.core.ledger import NOBODY, Ledger, Spending
from superdl.coordinator.core.settings import Prices
from tests.simulation.invariants import total_costs

PRICES = Prices(invocation=1.0, gb_s=2.0, source_request=0.5, source_gb=4.0, record_gb=8.0)


def ledger(prices=PRICES, *, max_usd=math.inf, max_usd_per_hour=math.inf) -> Ledger:
    made = Ledger([prices], max_usd=max_usd, max_usd_per_hour=max_usd_per_hour)
    made.settle(0.0)
    return made


def invoke(book: Ledger, dataset=b"a", *, now=0.0, gb_s=0.0, executor=0) -> float:
    counted = {"source_requests": 0, "source_bytes": 0, "record_bytes": 0}
    return book.invoked(dataset, executor=executor, gb_s=gb_s, now=now, **counted)


def freedom(book: Ledger, in_flight: list[tuple[int, int]]) -> Spending:
    book.watch(in_flight, 0.0)
    return book.spending


def test_every_unit_has_its_price_and_what_is_paid_for_is_kept_apart():
    book = Ledger(
        [Prices(1.0, 2.0, 0.5, 4.0, 8.0, 16.0, hour=3600.0, coordinator_hour=900.0)],
        max_usd=math.inf,
        max_usd_per_hour=math.inf,
        spent_usd=7.0,
    )
    book.settle(0.0)
    units = {"source_requests": 4, "source_bytes": 2**29, "record_bytes": 2**28}
    usd = book.invoked(b"a", gb_s=3.0, **units, now=0.0, store_gets=2, store_puts=1)
    assert usd == 1 + 6 + 2 + 2 + 2 + (1 + 16)
    book.settle(4.0)
    assert asdict(total_costs(book)) == {
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


def test_shared_work_is_split_over_those_who_used_it():
    book = ledger()
    book.produced(b"a", "one", 100, invoke(book))
    book.used(b"a", "one", 100, 0, 0.0)
    assert book.job_costs("one").usd == 1.0
    book.used(b"a", "two", 100, 0, 1.0)
    assert book.job_costs("one").usd == book.job_costs("two").usd == 0.5
    book.produced(b"b", "two", 10, invoke(book, b"b"))
    assert (book.job_costs("one").usd, book.job_costs("two").usd) == (0.5, 1.5)


def test_hours_are_split_over_those_who_are_there():
    book = ledger(Prices(hour=3600.0))
    book.settle(1.0)
    book.joined("one")
    book.settle(3.0)
    book.joined("two")
    book.settle(7.0)
    book.left("one")
    book.settle(8.0)
    assert book.job_costs(NOBODY).usd == 1.0
    assert book.job_costs("one").usd == 2.0 + 2.0
    assert book.job_costs("two").usd == 2.0 + 1.0
    assert book.total_usd == 8.0


def test_near_the_cap_spending_slows_and_at_the_cap_it_stops():
    book = ledger(max_usd=10.0)
    for _ in range(8):
        book.produced(b"a", "one", 10, invoke(book))
    assert freedom(book, [(0, 0)]) is Spending.FREELY
    assert freedom(book, [(1, 10)]) is Spending.SLOWED, "what is in flight counts as spent"
    assert freedom(book, [(2, 20)]) is Spending.STOPPED
    invoke(book)
    invoke(book)
    assert freedom(book, [(0, 0)]) is Spending.STOPPED


def test_beyond_the_cap_by_the_hour_spending_slows_until_time_has_passed():
    book = ledger(max_usd_per_hour=3600.0)
    for _ in range(310):
        invoke(book)
    assert freedom(book, [(0, 0)]) is Spending.SLOWED
    freely_s = book.freely_at_s(0.0, [(0, 0)])
    assert freely_s == pytest.approx(10.0, abs=0.1)
    book.settle(freely_s)
    assert freedom(book, [(0, 0)]) is Spending.FREELY
    assert book.freely_at_s(freely_s, [(0, 0)]) is None


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["join", "leave", "invoke", "produce", "use"]),
            st.sampled_from(["one", "two", "three"]),
            st.sampled_from([b"a", b"b"]),
            st.integers(0, 50),
            st.floats(0.0, 100.0),
        ),
        max_size=50,
    )
)
def test_all_that_is_spent_is_borne(steps):
    book, now = ledger(Prices(invocation=0.3, gb_s=0.1, record_gb=2.0, hour=5.0)), 0.0
    for kind, job, dataset, number, passed_s in steps:
        now += passed_s
        book.settle(now)
        if kind == "join":
            book.joined(job)
        elif kind == "leave":
            book.left(job)
        elif kind == "invoke":
            invoke(book, dataset, now=now, gb_s=number)
        elif kind == "produce":
            book.produced(dataset, job, number, 0.01 * number)
        else:
            book.used(dataset, job, number, number * 2**20, now)
        assert total_costs(book).usd == pytest.approx(book.total_usd)
        assert asdict(book.spent()) == pytest.approx(asdict(total_costs(book)))
