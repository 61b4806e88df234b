"""What benchmarks are made of: CPU clocks, child processes, orders, reports."""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
import time

import pytest
from rich.console import Console

from benchmarks.harness.processes import (
    BenchmarkError,
    children_cpu_s,
    descendants_cpu_s,
    held_to,
    process_cpu_s,
    run_child,
)
from benchmarks.harness.results import BenchmarkReport, Column, measured, print_report
from benchmarks.loaders.loading import PlannedOrder
from superdl.coordinator.core import Plan

BURN_S = 0.05
BURNER = f"""
import sys, time
while time.process_time() < {BURN_S}:
    pass
print("burnt", flush=True)
sys.stdin.read()
"""


def test_cpu_clocks_count_this_process_and_children_alive_and_waited_for():
    before = time.process_time()
    assert before <= process_cpu_s(os.getpid()) <= time.process_time()
    with subprocess.Popen(
        [sys.executable, "-c", BURNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout.readline() == b"burnt\n"
        assert process_cpu_s(child.pid) >= BURN_S
        assert descendants_cpu_s(os.getpid()) >= BURN_S
        alive = children_cpu_s()
        child.communicate()
    # The clock of the ended is coarser where the system counts in ticks.
    assert children_cpu_s() >= alive - 0.02
    for clock in (process_cpu_s, descendants_cpu_s):
        with pytest.raises(ProcessLookupError):
            clock(child.pid)


def test_a_thread_is_held_to_cores_until_the_block_ends():
    before = os.sched_getaffinity(0)
    with held_to([min(before)]):
        assert os.sched_getaffinity(0) == {min(before)}
    assert os.sched_getaffinity(0) == before


def speak(number: int) -> tuple[int, str]:
    if number < 0:
        raise LookupError("below zero")
    sys.stdout.write("words of a loader\n")
    return os.getpid(), os.environ["SUPER_BENCH_TEST"]


def test_a_child_is_a_process_of_its_own_whose_words_are_not_the_reports(capfd):
    environment = {"SUPER_BENCH_TEST": "here"}
    pid, value = run_child(speak, 1, name="speaking", environment=environment)
    assert pid != os.getpid()
    assert value == "here"
    assert "SUPER_BENCH_TEST" not in os.environ
    assert capfd.readouterr().out == ""
    with pytest.raises(BenchmarkError, match="speaking failed: LookupError: .*below zero"):
        run_child(speak, -1, name="speaking", environment=environment)


def test_the_planned_order_is_the_plans_epoch_by_epoch():
    order = PlannedOrder(10, 4, seed=3)
    plan = Plan(size=10, batch_size=4, seed=3)
    assert len(order) == 3
    iter(order)  # an iterator that is not used, as DataLoader makes, begins no epoch
    for epoch in range(2):
        assert list(order) == [plan.batch(epoch, position, 0).indices.tolist() for position in range(3)]


def test_a_report_has_tables_by_group_a_dash_for_what_is_absent_and_names_the_machine():
    options = argparse.Namespace(command="bench", benchmark="read", rounds=1, data="/home/me", json=True)
    made = BenchmarkReport(
        packages=["boto3", "no-such-package"],
        settings={"images_of": "a"},
        method=["How it was measured."],
        group_by=["images"],
        columns=[Column("loader", "loader"), Column("cpu_ms", "CPU ms", ".3f")],
        rows=[
            {"images": "a", "loader": "one", "cpu_ms": 0.12345},
            {"images": "b", "loader": "two", "cpu_ms": None},
            {"images": "b", "loader": "three", "cpu_ms": 0.5},
            {"images": "c", "loader": "four", "cpu_ms": None},
        ],
    )
    report, content = measured(lambda *_: made, options, lambda _: None)
    console = Console(file=io.StringIO(), width=100)
    print_report(report, content, console)
    text = console.file.getvalue()
    assert [line.strip() for line in text.splitlines() if line.startswith("read, ")] == [
        "read, images a",
        "read, images b",
        "read, images c",
    ]
    words = text.split()
    assert "0.123" in words
    assert words[words.index("two") + 1] == "-"
    assert text.count("CPU ms") == 2, "a table without such figures has no such column"
    assert "How it was measured." in text
    assert content["environment"]["cpu_model"] in text
    assert f"torch {content['environment']['packages']['torch']}" in text
    assert content["environment"]["packages"]["boto3"]
    assert content["environment"]["packages"]["no-such-package"] is None
    assert content["rows"][0]["cpu_ms"] == 0.12345
    assert content["settings"] == {"rounds": 1, "images_of": "a"}
