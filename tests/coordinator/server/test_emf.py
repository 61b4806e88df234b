"""The lines that CloudWatch takes as metrics: what they have, and what alarms make of them."""

from __future__ import annotations

import asyncio
import io
import json
import time

import pytest

from superdl.coordinator.cache.info import CacheLoad
from superdl.coordinator.server.metrics import EmfLines
from tests.coordinator.core.driver import Driver


def test_a_line_says_how_long_readers_waited_since_the_last_one():
    driver = Driver(size=64, capacity=2)
    driver.now_s = time.monotonic() - 60.0
    driver.open()
    driver.ask(0, 8)
    out = io.StringIO()
    loads = iter([CacheLoad(0.25, 0.5, 3), CacheLoad(0.25, 0.5, 7)])
    lines = EmfLines(driver.core, "a-stack", lambda: next(loads), out)
    driver.read(0, missed=(0, 1))
    driver.answer_all()
    driver.read(0, hits=6, wait_us=30_000_000, missed=())
    asyncio.run(lines.tell())
    asyncio.run(lines.tell())
    first, second = (json.loads(line) for line in out.getvalue().splitlines())
    assert first["WaitingPercent"] == pytest.approx(50.0, rel=0.05)
    assert second["WaitingPercent"] == 0.0
    assert (first["Throttles"], first["Thrashing"], first["SpendingLimited"]) == (0, 0, 0)
    (described,) = first["_aws"]["CloudWatchMetrics"]
    assert (described["Namespace"], described["Dimensions"]) == ("SUPER", [["Coordinator"]])
    assert (first["FullestNodePercent"], first["BusiestNodePercent"]) == (25.0, 50.0)
    assert (first["EvictedKeys"], second["EvictedKeys"]) == (3, 4)
    assert first["Coordinator"] == "a-stack"
    names = [metric["Name"] for metric in described["Metrics"]]
    assert set(names) == set(first) - {"_aws", "Coordinator"}
    assert abs(first["_aws"]["Timestamp"] / 1000 - time.time()) < 60
