"""The pusher acknowledges what the cache acknowledged, mends one broken connection, and then fails fast."""

from __future__ import annotations

import queue
import threading

import pytest

from superdl.lambda_prefetch.push import BudgetClosedError, ByteBudget, Pusher
from superdl.lambda_prefetch.settings import FunctionSettings
from tests.lambda_prefetch.prefetching import wait_until

HEADER = b"h" * 64
SETTINGS = FunctionSettings(push_bytes=2**20)


def push(cache, payloads, settings=SETTINGS):
    with Pusher(cache, settings) as pusher:
        for index, payload in enumerate(payloads):
            pusher.put(index, b"k%d" % index, HEADER, memoryview(payload))
    return sorted(pusher.results, key=lambda pushed: pushed.index)


def test_records_larger_than_the_budget_pass_between_small_ones(valkey):
    payloads = [b"s", b"L" * 3_000_000, b"s", b"s", b"L" * 1_100_000, b"s"] * 5
    assert not any(pushed.refusal for pushed in push(valkey.unix_url, payloads))


def test_a_cache_that_is_gone_refuses_everything_and_says_why(valkey):
    push(valkey.unix_url, [b"x"])
    valkey.kill()
    results = push(valkey.unix_url, [b"y" * 200_000] * 40)
    assert len(results) == 40
    assert all(valkey.unix_url in pushed.refusal for pushed in results)


def test_the_pusher_says_that_it_is_broken(tmp_path):
    with Pusher(f"unix://{tmp_path}/none.sock", SETTINGS) as pusher:
        pusher.put(0, b"k", HEADER, memoryview(b"x" * 300_000))
        pusher.put(1, b"k", HEADER, memoryview(b"x" * 900_000))  # has room only once the first was given up
        assert "none.sock" in pusher.broken


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


def test_a_large_piece_is_not_overtaken_by_small_ones_for_ever():
    budget, served = ByteBudget(100_000), queue.SimpleQueue()
    budget.acquire(50_000)
    large = in_thread(budget, 1_000_000, served, "large")
    wait_until(budget._turn.locked)
    small = in_thread(budget, 10_000, served, "small")
    assert served.empty()
    budget.release(50_000)
    assert served.get(timeout=PATIENCE_S) == ("large", "served")
    assert budget._used_bytes == 1_000_000
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
