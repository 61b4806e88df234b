"""What is told of executors: also one alone says that it is throttled, while it is."""

from __future__ import annotations

import io
from types import SimpleNamespace

from rich.console import Console

from superdl.coordinator.core import FailureKind
from superdl.coordinator.server.statistics import executor_stats
from superdl.stats_command import _print_executors, mapping
from tests.coordinator.core.driver import Driver


def shown(driver: Driver) -> str:
    """The lines of ``superdl stats`` on executors."""
    console = Console(file=io.StringIO(), width=500)
    told = executor_stats(driver.core, [SimpleNamespace(absence="")])
    _print_executors([mapping(one) for one in told], console)
    return console.file.getvalue()


def test_throttling_is_named_while_it_happens_though_there_is_one_executor_and_some_requests_work():
    driver = Driver()
    driver.open()
    driver.ask(0, 8)
    assert shown(driver) == ""
    for _ in range(5):
        driver.fail(driver.requests[0], FailureKind.THROTTLED)
        driver.wait(2.0)
        driver.answer(driver.requests[0])
    assert "throttled 5 times in the last minute" in shown(driver)
    driver.wait(30.0)
    driver.ask(0, 8)
    driver.fail(driver.requests[0], FailureKind.THROTTLED)
    assert "throttled 6 times" in shown(driver)
    assert "because" in shown(driver)
    driver.wait(61.0)
    driver.answer_all()
    driver.wait(1.0)
    assert shown(driver) == ""
