"""A budget bounds bytes, serves in order, lets the oversized in alone, and turns all away when it closes."""

from __future__ import annotations

import queue
import threading

import pytest

from superdl.lambda_prefetch.budget import MIN_PIECE_BYTES, BudgetClosedError, ByteBudget
from tests.lambda_prefetch.prefetching import wait_until

PATIENCE_S = 10


def in_thread(budget, size, served, name):
    def ask():
        try:
            budget.acquire(size)
        except BudgetClosedError:
            served.put((name, "closed"))
        else:
            served.put((name, "served"))

    thread = threading.Thread(target=ask)
    thread.start()
    return thread


def test_room_is_given_and_taken_back():
    budget = ByteBudget(100_000)
    budget.acquire(60_000)
    budget.acquire(40_000)
    assert budget.used_bytes == 100_000
    budget.release(60_000)
    assert budget.used_bytes == 40_000


def test_tiny_pieces_count_what_python_spends_on_them():
    budget = ByteBudget(100_000)
    budget.acquire(1)
    assert budget.used_bytes == MIN_PIECE_BYTES
    budget.release(1)
    assert budget.used_bytes == 0


def test_a_large_piece_is_not_overtaken_by_small_ones_for_ever():
    budget, served = ByteBudget(100_000), queue.SimpleQueue()
    budget.acquire(50_000)
    large = in_thread(budget, 1_000_000, served, "large")
    wait_until(lambda: budget.waiting == 1)
    small = in_thread(budget, 10_000, served, "small")
    wait_until(lambda: budget.waiting == 2)
    assert served.empty()
    budget.release(50_000)
    assert served.get(timeout=PATIENCE_S) == ("large", "served")
    assert budget.used_bytes == 1_000_000
    budget.release(1_000_000)
    assert served.get(timeout=PATIENCE_S) == ("small", "served")
    large.join(PATIENCE_S)
    small.join(PATIENCE_S)


def test_closing_turns_away_those_who_wait_and_those_who_come():
    budget, served = ByteBudget(100_000), queue.SimpleQueue()
    budget.acquire(100_000)
    waiting = in_thread(budget, 10_000, served, "waiting")
    budget.close()
    assert served.get(timeout=PATIENCE_S) == ("waiting", "closed")
    waiting.join(PATIENCE_S)
    with pytest.raises(BudgetClosedError):
        budget.acquire(1)
