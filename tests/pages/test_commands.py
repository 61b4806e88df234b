"""The commands in README and tutorial run: quick ones here, all in environments that the pages create."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import pytest
import torch

from tests.fixtures.images import write_images
from tests.pages.commands import check
from tests.pages.markdown import ROOT, blocks_of, commands_of, here

README, TUTORIAL = ROOT / "README.md", ROOT / "docs/tutorial.md"
STUDIES = sorted((ROOT / "docs/experiments").glob("*.md"))
TORCH = f"torch=={torch.__version__.partition('+')[0]}"
NEXT = "=== next command"

pages = pytest.mark.parametrize("page", [README, TUTORIAL], ids=lambda page: page.stem)


@pytest.fixture
def place():
    """A short directory, for unix sockets' paths have 107 bytes. Its ``bucket`` has images."""
    folder = Path(tempfile.mkdtemp(prefix="super-p-"))
    for split in ("train", "val"):
        write_images(folder / "bucket" / split, 40)
    yield folder
    shutil.rmtree(folder)


def play(blocks, place, *, directory, programs):
    """Run blocks in a shell, code after commands; the output of each command.

    What they keep below the home directory begins empty. They find ``programs`` first.
    """
    script, commands = ["set -e"], []
    for block in blocks:
        if block.language == "python":
            file = place / f"line{block.line}.py"
            file.write_text(here(block.text, place / "bucket"))
            commands.append(f"python {file}")
    commands = [command for block in blocks for command, _ in block.commands] + commands
    for command in commands:
        script += [f"echo {NEXT}", here(command, place / "bucket")]
    own = {name: value for name, value in os.environ.items() if not name.startswith(("SUPER_", "PYTHON"))}
    own |= {
        "PATH": os.pathsep.join([str(programs), os.environ["PATH"]]),
        "TMPDIR": str(place),
        "PIP_CACHE_DIR": os.environ.get("PIP_CACHE_DIR", str(Path.home() / ".cache/pip")),
        "XDG_CACHE_HOME": tempfile.mkdtemp(dir=place),
        "TORCH": TORCH,
    }
    done = subprocess.run(
        (shutil.which("bash"), "-c", "\n".join(script)), cwd=directory, env=own, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:]
    return dict(zip(commands, done.stdout.split(f"{NEXT}\n")[1:], strict=True))


def table_of(text):
    """The headings of a run's table, and how many images each of its passes read."""
    before, _, after = re.split(r"^( ─+ *)$", text, flags=re.MULTILINE)
    headings = re.split(r"^(?: *|\.\.\.)\n", before, flags=re.MULTILINE)[-1]
    rows = re.findall(r"^ (\d+ (?:train|val)) +([\d,]+) ", after, flags=re.MULTILINE)
    return headings.split(), dict(rows)


@pages
def test_every_block_says_how_it_is_tested_and_why_it_is_not_always(page):
    blocks = blocks_of(page)
    assert [block.line for block in blocks if block.mark is None] == []
    assert {block.language for block in blocks} == {"console", "python"}, "others are neither run nor parsed"
    assert [block.line for block in blocks if block.mark != "run" and not block.reason] == []


@pytest.mark.parametrize("page", [README, TUTORIAL, *STUDIES], ids=lambda page: page.stem)
def test_every_command_is_a_command(page):
    for command in commands_of(page):
        check(command)


def test_quick_commands_of_the_tutorial_run(place):
    blocks = [block for block in blocks_of(TUTORIAL) if block.mark == "run" and block.commands]
    outputs = play(blocks, place, directory=place, programs=Path(sys.executable).parent)
    (doctor,) = (output for command, output in outputs.items() if command.startswith("superdl doctor"))
    assert " 0 fail, " in doctor


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_newcomer_gets_through_both_pages(place):
    programs = place / "venv/bin"
    venv.create(programs.parent, with_pip=True)
    for package in (TORCH, str(ROOT)):
        subprocess.run([programs / "pip", "install", "--quiet", package], check=True)
    run = [programs / "superdl", "run", "digits"]
    bare = subprocess.run(run, cwd=place, capture_output=True, check=False)
    assert (bare.returncode, b"superdl[train]" in bare.stderr) == (2, True), "README says what it lacks"

    blocks = [block for block in blocks_of(README) if block.mark != "parsed"]
    play(blocks, place, directory=place, programs=programs)
    blocks = [block for block in blocks_of(TUTORIAL) if block.mark != "parsed"]
    checkout = place / "super"  # cloned by README
    outputs = play(blocks, place, directory=checkout, programs=checkout / ".venv/bin")
    for block in blocks:
        for command, shown in block.commands:
            if shown:
                headings, rows = table_of("\n".join(shown))
                own_headings, own_rows = table_of(outputs[command])
                assert headings == own_headings
                assert rows
                assert rows.items() <= own_rows.items()
