"""What is said of a run of several ranks, of which the files tell some things of rank 0 alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from superdl.experiments.monitoring import PhaseUsage, Utilization
from superdl.experiments.monitoring.monitor import GroupUsage
from superdl.experiments.reporting.run_page import run_page
from superdl.experiments.reporting.run_tables import processors_table
from tests.experiments.reporting.test_run_words import a_run, one_pass
from tests.experiments.test_report import printed, report
from tests.fixtures.pages import read_page

if TYPE_CHECKING:
    from superdl.experiments.reporting.page import Table
    from superdl.experiments.reporting.run_files import RunFiles

GROUP = {"cpu_s": 4.0, "cpu_cores": 0.4, "pss_bytes_max": None}
PHASE = {
    "epoch": 0,
    "split": "train",
    "wall_s": 10.0,
    "groups": {"trainer": GROUP},
    "gpu_percent": None,
    "gpu_memory_bytes_max": None,
}


def run_of(ranks: int) -> RunFiles:
    return a_run(one_pass(), ranks=ranks, utilization={"phases": [PHASE]})


def columns(table: Table | None) -> list[tuple[str, str]]:
    return [] if table is None else [(column.name, column.unit) for column in table.columns]


def test_cpu_by_image_is_told_of_one_rank_alone():
    assert ("CPU", "ms/image") in columns(processors_table(run_of(1)))
    assert ("CPU", "ms/image") not in columns(processors_table(run_of(4)))
    assert "CPU by image is left out" in read_page(run_page(run_of(4)).html()).text
    assert "CPU by image is left out" not in read_page(run_page(run_of(1)).html()).text


def test_status_checks_are_said_to_be_of_rank_0():
    counted = {"status_calls": 3, "status_s": 0.1, "status_cpu_s": 0.1, "status_wait_s": 0.0}
    text = read_page(run_page(a_run(one_pass(job=counted), ranks=4)).html()).text
    _, _, after = text.partition("Status checks: ")
    assert "Of 4 ranks this is rank 0" in after.partition("1 train")[0]


def test_the_printed_table_has_no_cpu_by_image_of_several_ranks():
    trainer = GroupUsage(1, cpu_s=2.876, cpu_cores=1.5, rss_bytes_max=1, pss_bytes_max=None)
    phase = PhaseUsage(0, "train", 2.0, 3, {"trainer": trainer}, None, None)
    value = report(utilization=Utilization(1.0, 3, 0.0, (phase,)))
    assert "2.00" in printed(value)
    several = printed(report(utilization=value.utilization, ranks=4))
    assert "2.00" not in several
    assert "CPU per image is left out" in several
