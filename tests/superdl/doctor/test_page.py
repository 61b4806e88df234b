"""docs/doctor.md names what there is: the checks in their order, options, files."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from superdl.doctor.checks import CHECKS
from superdl.doctor.command import add_arguments

PAGE = Path(__file__).resolve().parents[3] / "docs" / "doctor.md"


def test_its_table_has_every_check_in_order():
    table = PAGE.read_text(encoding="utf-8").partition("## The checks, in their order")[2]
    assert re.findall(r"^\| `([a-z ]+)` \|", table, re.MULTILINE) == [check.name for check in CHECKS]


def test_its_options_are_options():
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    named = set(re.findall(r"(?<![\w-])(--[a-z][a-z-]+)", PAGE.read_text(encoding="utf-8")))
    assert named
    assert named <= set(parser.format_help().replace(",", " ").replace("[", " ").replace("]", " ").split())


def test_its_links_lead_somewhere():
    links = re.findall(r"\]\(([^)#:]+)\)", PAGE.read_text(encoding="utf-8"))
    assert links
    assert [link for link in links if not (PAGE.parent / link).exists()] == []
