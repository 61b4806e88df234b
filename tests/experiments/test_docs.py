"""Each study has a spec and a page with valid commands, and docs/runs.md lists what a run writes."""

import re
from dataclasses import fields

import pytest

from superdl.experiments.comparing.arms import arms_of
from superdl.experiments.data import MADE_SETS, PUBLISHED_SETS
from superdl.experiments.monitoring import GROUPS
from superdl.experiments.records import StepRecord
from superdl.experiments.spec import load_spec
from superdl.super_wire.stall_causes import WAITS
from tests.pages.commands import check
from tests.pages.markdown import ROOT, commands_of
from tools.studies import STUDIES

SPECS = sorted((ROOT / "experiments/specs").glob("*.yaml"))
_SAMPLES_MAX = 12_000


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_a_spec_is_named_as_its_file(path):
    assert load_spec(path).name == path.stem


@pytest.mark.parametrize("quick", [False, True], ids=["full", "quick"])
@pytest.mark.parametrize("name", STUDIES)
def test_a_study_loads_with_all_its_arms(name, quick):
    spec = load_spec(name, quick=quick)
    assert all(arm.trials for arm in arms_of(spec))
    assert spec.data.kind in {*MADE_SETS, *PUBLISHED_SETS}
    if quick:
        assert spec.data.samples is not None
        assert spec.data.samples <= _SAMPLES_MAX, "it takes minutes on two cores"
    else:
        assert spec.data.samples is None


PAGES = ROOT / "docs/experiments"


@pytest.mark.parametrize("name", STUDIES)
def test_a_page_has_commands_for_both_sizes_of_its_study(name):
    page = PAGES / f"{name}.md"
    commands = [command for command in commands_of(page) if name in check(command)]
    assert any("--quick" in command for command in commands)
    assert any("--quick" not in command for command in commands)
    one_host = ("resnet18_tiny_imagenet", "mnist_split", "hpo_sharing")
    several = ("infra.launcher", "local_hosts")
    assert any(word in command for command in commands for word in several) or name in one_host


# ---------------------------------------------------------------------------------------- docs/runs.md

RUNS = (ROOT / "docs/runs.md").read_text(encoding="utf-8")


def first_cells(section):
    """Return the code in the first column of a section's tables."""
    text = RUNS.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("|")]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)} - {"subject"}


def test_the_columns_of_steps_are_listed():
    assert first_cells("Steps") == {item.name for item in fields(StepRecord)}


def test_the_groups_of_processes_are_listed():
    assert first_cells("Utilisation") - {"group"} == set(GROUPS)


def test_the_causes_of_stalls_are_listed():
    assert first_cells("Stalls") - {"cause"} == WAITS.keys()
