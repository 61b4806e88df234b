"""The studies: each spec loads whole and quick, and has a page whose commands are commands."""

from __future__ import annotations

import re

import pytest

from superdl.experiments.comparing.arms import arms_of
from superdl.experiments.data import MADE_SETS, PUBLISHED_SETS
from superdl.experiments.spec import load_spec
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
