"""The pages: each study has a spec and commands that are some, and docs/runs.md has what a run writes."""

import re
from dataclasses import fields

import pytest

from superdl.experiments.comparing.arms import arms_of
from superdl.experiments.data import MADE_SETS, PUBLISHED_SETS
from superdl.experiments.monitoring import GROUPS
from superdl.experiments.records import StepRecord
from superdl.experiments.spec import load_spec
from superdl.super_wire.waits import WAITS
from tests.pages.commands import check
from tests.pages.markdown import ROOT, commands_of
from tools.studies import STUDIES

SPECS = sorted((ROOT / "experiments/specs").glob("*.yaml"))
_SAMPLES_MAX = 12_000


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_a_spec_is_named_as_its_file_and_says_what_it_is(path):
    assert load_spec(path).name == path.stem
    assert path.read_text(encoding="utf-8").startswith("# "), "what it asks, for those who open it"


@pytest.mark.parametrize("name", ["resnet18_ddp_finetune", "vit_cifar10"])
def test_a_study_that_fine_tunes_names_its_weights_and_where_to_get_them(name):
    model = load_spec(name).model
    assert model.weights is not None
    assert str(model.weights_from).startswith("https://")
    assert load_spec(name, quick=True).model.weights is None


@pytest.mark.parametrize("quick", [False, True], ids=["full", "quick"])
@pytest.mark.parametrize("name", STUDIES)
def test_a_study_loads_with_all_its_arms(name, quick):
    spec = load_spec(name, quick=quick)
    assert all(arm.trials for arm in arms_of(spec))
    assert spec.data.kind in {*MADE_SETS, *PUBLISHED_SETS}
    if quick:
        assert spec.data.samples is not None
        assert spec.data.samples <= _SAMPLES_MAX, "a quick one is for minutes on two cores"
    else:
        assert spec.data.samples is None


PAGES = ROOT / "docs/experiments"
HEADINGS = (
    "What it asks",
    "How to run it",
    "What was measured",
    "What it means",
    "What has not been measured",
)


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_has_a_page_that_runs_it_both_ways(name):
    page = PAGES / f"{name}.md"
    headings = re.findall(r"^## (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert [heading for heading in HEADINGS if heading not in headings] == []
    commands = [command for command in commands_of(page) if name in check(command)]
    assert any("--quick" in command for command in commands)
    assert any("--quick" not in command for command in commands)
    one_host = ("resnet18_tiny_imagenet", "mnist_split", "hpo_sharing")
    several = ("infra.launcher", "local_hosts")
    assert any(word in command for command in commands for word in several) or name in one_host


def test_the_index_has_every_spec():
    page = (PAGES.parent / "performance.md").read_text(encoding="utf-8")
    named = {load_spec(path).name for path in SPECS}
    assert {name for name in named if f"`{name}`" not in page} == set()


# ---------------------------------------------------------------------------------------- docs/runs.md

RUNS = (ROOT / "docs/runs.md").read_text(encoding="utf-8")


def first_cells(section):
    """What stands in code in the first column of a section's tables."""
    text = RUNS.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("|")]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)} - {"subject"}


def test_the_steps_columns():
    assert first_cells("Steps") == {item.name for item in fields(StepRecord)}


def test_the_groups_of_processes():
    assert first_cells("Utilisation") - {"group"} == set(GROUPS)


def test_the_causes_of_stalls_are_those_that_a_page_explains():
    assert first_cells("Stalls") - {"cause"} == WAITS.keys()
