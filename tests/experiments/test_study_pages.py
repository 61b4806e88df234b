"""Each study has a page that says what it asks and found, and whose commands are commands."""

from __future__ import annotations

import re

import pytest

from superdl.experiments.spec import load_spec
from tests.experiments.test_studies import SPECS
from tests.pages.commands import check
from tests.pages.markdown import ROOT, commands_of
from tools.studies import STUDIES

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
