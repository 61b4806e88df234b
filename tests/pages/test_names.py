"""What the pages name is there: variables, commands' options, files."""

from __future__ import annotations

import argparse
import dataclasses
import re

import pytest

from superdl.coordinator.server.settings import Settings, add_arguments
from tests.architecture.test_imports import PACKAGES, ROOT

PAGES = ["SECURITY.md", "docs/cache.md"]


@pytest.mark.parametrize("page", PAGES)
def test_every_variable_of_a_page_is_read_somewhere(page):
    named = set(re.findall(r"\bSUPER_[A-Z_]+[A-Z]\b", (ROOT / page).read_text(encoding="utf-8")))
    assert named
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    code = "\n".join(path.read_text(encoding="utf-8") for path in files)
    known = {f"SUPER_{field.name.upper()}" for field in dataclasses.fields(Settings)}
    assert {name for name in named if name not in known and f'"{name}"' not in code} == set()


@pytest.mark.parametrize("page", PAGES)
def test_every_option_of_a_page_is_an_option(page):
    named = set(re.findall(r"(?<![\w-])--([a-z][a-z-]+)", (ROOT / page).read_text(encoding="utf-8")))
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert {name for name in named if f"--{name}" not in parser.format_help()} == set()


@pytest.mark.parametrize("page", PAGES)
def test_every_link_of_a_page_leads_to_a_file(page):
    place = (ROOT / page).parent
    links = re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text(encoding="utf-8"))
    assert [link for link in links if not (place / link).exists()] == []
