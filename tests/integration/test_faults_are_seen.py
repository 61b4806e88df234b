"""A fault of functions shows where people look, soon after the log has its first line, and in few lines."""

from __future__ import annotations

import json
import time
import urllib.request
from typing import TYPE_CHECKING

import pytest

from superdl.main import main
from superdl.sampler import SuperSampler
from superdl.super_dataset import Recipe, SuperDataset
from tests.fixtures.faulty_function import FUNCTION, Script
from tests.fixtures.images import SIDE
from tests.fixtures.stack import Stack
from tests.fixtures.valkey import free_port

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ENOUGH_S, SOON_S = 60.0, 2.0
LINES_MAX = 20
# What a function does from its second call on, what the log says first, and the outcome that is counted.
FAULTS = {
    "raise": ("the function raised RuntimeError: as the script says", "raised"),
    "die": ("killed by SIGKILL", "crashed"),
    "hang": ("the function did not answer in time", "timed_out"),
    "answer for another": ("answered for 'another'", "raised"),
}


def until(condition: Callable[[], bool], within_s: float) -> None:
    deadline_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "does", ["raise", *(pytest.param(does, marks=pytest.mark.slow) for does in list(FAULTS)[1:])]
)
def test_a_fault_of_functions_shows_in_metrics_and_stats_and_in_few_lines(
    tmp_path: Path, images: Path, capsys: pytest.CaptureFixture[str], does: str
) -> None:
    words, outcome = FAULTS[does]
    script, metrics = Script(tmp_path), f"127.0.0.1:{free_port()}"
    for number in range(2, 200):
        script.at_call(number, does)
    arguments = ("--workers", "2", "--request-timeout-s", "0.25", "--request-samples", "4")
    arguments += ("--function", FUNCTION, "--metrics-listen", metrics, "--log-format", "json")

    def counted(stack: Stack) -> bool:
        with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        (line,) = (
            line
            for line in text.splitlines()
            if line.startswith("super_requests_total{") and f'outcome="{outcome}"' in line
        )
        assert main(["stats", "--coordinator", stack.address, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        ended = {one["outcome"]: one["requests"] for one in told["executors"][0]["ended"]}
        return float(line.rpartition(" ")[2]) > 0 and ended.get(outcome, 0) > 0

    with Stack(arguments=arguments, environment=script.environment) as stack:
        dataset = SuperDataset(images.as_uri(), Recipe.image(resize=SIDE, crop=SIDE))
        with SuperSampler(dataset, batch_size=16, coordinator=stack.address) as sampler:
            until(lambda: words in stack.log.read_text(), ENOUGH_S)
            until(lambda: counted(stack), SOON_S)
            until(lambda: script.calls() >= 20, ENOUGH_S)
            assert sampler.job_stats().retries > 0
        lines = stack.log.read_text().splitlines()
    assert len(lines) < LINES_MAX, "\n".join(lines)
