"""The table of what a run used: its figures, what is absent, and its width."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from superdl.experiments.monitoring.monitor import GroupUsage, PhaseUsage, Utilization, utilization_table

MIB = 2**20
TRAINER = GroupUsage(1, cpu_s=3.0, cpu_cores=1.5, rss_bytes_max=600 * MIB, pss_bytes_max=500 * MIB)
CACHE = GroupUsage(1, cpu_s=1.0, cpu_cores=0.5, rss_bytes_max=9000 * MIB, pss_bytes_max=9000 * MIB)
TRAIN = PhaseUsage(0, "train", 2.0, 3, {"trainer": TRAINER, "cache": CACHE}, None, None)


def rows(*phases: PhaseUsage, width: int = 80) -> list[list[str]]:
    file = io.StringIO()
    console = Console(file=file, width=width)
    console.print(utilization_table(Utilization(1.0, 9, 0.01, phases), {(0, "train"): 2000}))
    text = file.getvalue()
    assert "…" not in text
    return [line.split() for line in text.splitlines()]


def test_what_was_not_there_is_absent():
    shown = rows(TRAIN, replace(TRAIN, epoch=None, split="start", groups={"trainer": TRAINER}))
    assert ["1", "train", "1.50", "-", "-", "0.50", "-", "2.00", "9,500"] in shown
    assert ["start", "1.50", "-", "-", "-", "-", "-", "500"] in shown
    assert not any("GPU" in row for row in shown)


def test_memory_that_was_not_read_is_absent():
    unread = replace(TRAIN, groups={"trainer": TRAINER, "cache": replace(CACHE, pss_bytes_max=None)})
    assert ["1", "train", "1.50", "-", "-", "0.50", "-", "2.00", "-"] in rows(unread)


@pytest.mark.parametrize("width", [80, 40])
def test_a_gpu_has_columns_and_nothing_is_cut(width):
    shown = rows(replace(TRAIN, gpu_percent=73.4, gpu_memory_bytes_max=81_000 * MIB), width=width)
    if width == 80:
        assert ["1", "train", "1.50", "-", "-", "0.50", "-", "2.00", "9,500", "73", "81,000"] in shown
