"""What pages name exists: variables, options, commands, files. README's figures match other pages."""

import argparse
import dataclasses
import re
import tomllib

import pytest

from superdl.coordinator.server.settings import Settings, add_arguments
from superdl.main import main
from tests.architecture.test_imports import PACKAGES
from tests.infra.test_shipped_commands import SHIPPED
from tests.pages.markdown import PAGES, ROOT

VARIABLE = re.compile(r"\bSUPER_[A-Z_]+[A-Z]\b")

TEXTS = ["SECURITY.md", "docs/reference.md"]


@pytest.mark.parametrize("file", [*TEXTS, *(path.relative_to(ROOT).as_posix() for path in SHIPPED)])
def test_every_variable_of_a_page_or_a_shipped_file_is_read_somewhere(file):
    text = (ROOT / file).read_text(encoding="utf-8")
    paths = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    code = "\n".join(path.read_text(encoding="utf-8") for path in paths)
    known = {f"SUPER_{field.name.upper()}" for field in dataclasses.fields(Settings)}
    # Of a script in the file, or read by the code.
    known |= {name for name in VARIABLE.findall(text) if f"${name}" in text or f'"{name}"' in code}
    assert set(VARIABLE.findall(text)) <= known


@pytest.mark.parametrize("page", TEXTS)
def test_every_option_of_a_page_is_an_option(page):
    named = set(re.findall(r"(?<![\w-])--([a-z][a-z-]+)", (ROOT / page).read_text(encoding="utf-8")))
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert {name for name in named if f"--{name}" not in parser.format_help()} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_of_a_page_leads_to_a_file(page):
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_test_that_the_page_of_faults_names_is_there():
    named = re.findall(r"`([\w/]*\btest_\w+\.py)`", (ROOT / "docs/faults.md").read_text(encoding="utf-8"))
    assert named
    folders = (ROOT, ROOT / "tests", ROOT / "tests/integration")
    assert {name for name in named if not any((folder / name).is_file() for folder in folders)} == set()


def test_the_reference_has_every_subcommand(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    commands = re.findall(r"^    (\w+)(?: |$)", capsys.readouterr().out, re.MULTILINE)
    section = (ROOT / "docs/reference.md").read_text(encoding="utf-8").partition("\n## Commands\n")[2]
    assert re.findall(r"`(\w+)`", section.partition(".\n")[0]) == commands


def test_the_readme_names_the_system_and_the_least_versions():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (torch,) = (name for name in project["dependencies"] if name.startswith("torch>"))
    least = [re.search(r">=(\d+\.\d+)", text)[1] for text in (project["requires-python"], torch)]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "Python {} or newer and PyTorch {} or newer".format(*least) in readme
    systems = [words for words in project["classifiers"] if words.startswith("Operating System")]
    assert systems == ["Operating System :: POSIX :: Linux"]
    assert "macOS" not in readme
    assert len(readme.encode()) < 8000, "it is for deciding; the pages say the rest"


def test_the_readmes_figures_are_those_of_the_pages_that_measured_them():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = readme.partition("\n## Results\n")[2].partition("|--:|")[2].partition("\n\n")[0].splitlines()[1:]
    pages = [ROOT / "docs/performance.md", *(ROOT / "docs/experiments").glob("*.md")]
    sections = [part for page in pages for part in page.read_text(encoding="utf-8").split("\n## ")]
    assert rows
    for row in rows:
        *cells, origin = [cell.strip() for cell in row.strip("|").split("|")]
        if link := re.fullmatch(r"\[\w+\]\((.+)\)", origin):
            texts = [(ROOT / link[1]).read_text(encoding="utf-8")]
        else:
            texts = [section for section in sections if origin.strip("`") in section]
        measured = [float(figure) for figure in _figures("\n".join(texts))]
        for figure in _figures("|".join(cells[1:])):
            half = 0.5001 * 10 ** -len(figure.partition(".")[2])
            assert any(abs(value - float(figure)) <= half for value in measured), (figure, row)


def _figures(text):
    """Numbers in a text, without the commas between thousands."""
    return [match.replace(",", "") for match in re.findall(r"(?<![\w.-])\d[\d,]*(?:\.\d+)?(?![\w-])", text)]
