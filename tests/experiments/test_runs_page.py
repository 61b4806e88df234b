"""docs/runs.md names every file and every column that a run writes, and none that it does not."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from superdl.experiments.monitoring import GROUPS, UTILIZATION_COLUMNS
from superdl.experiments.records import StepRecord
from superdl.super_wire.waits import WAITS

PAGE = (Path(__file__).resolve().parents[2] / "docs/runs.md").read_text(encoding="utf-8")


def first_cells(section):
    """What stands in code in the first column of a section's tables."""
    text = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("|")]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)} - {"subject"}


def test_the_steps_columns():
    assert first_cells("Steps") == {item.name for item in fields(StepRecord)}


def test_the_utilisations_columns_and_subjects():
    assert first_cells("Utilisation") == {*UTILIZATION_COLUMNS, *GROUPS, "gpu"} - {"subject"}


def test_the_causes_of_stalls_are_those_that_a_page_explains():
    assert first_cells("Stalls") - {"cause"} == WAITS.keys()
