"""``superdl demo``: measurements of real processes, and the script that it prints."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from superdl.experiments.loaders.demo import PILLOW, SUPER, script_lines
from tests.fixtures.images import write_images

SUPERDL = Path(sys.executable).with_name("superdl")
IMAGES, READ, BROKEN = 40, 30, "cat/00002.jpg"


@pytest.fixture
def place():
    """A directory with a short path, because paths of unix sockets have 107 bytes at most."""
    with tempfile.TemporaryDirectory(prefix="super-t-") as folder:
        yield Path(folder)


def python(*words, place):
    own = {name: value for name, value in os.environ.items() if not name.startswith("SUPER_")}
    own |= {"TMPDIR": str(place), "SUPER_STORE": str(place / "store")}
    done = subprocess.run(words, cwd=place, env=own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_both_loaders_read_the_same_images_and_super_decodes_each_once(place):
    (write_images(place / "mine", IMAGES) / BROKEN).write_bytes(b"no image")
    results = json.loads(python(SUPERDL, "demo", "mine", "--images", str(READ), "--json", place=place))
    assert [epoch["images"] for epoch in results[PILLOW]] == [READ - 1] * 3
    assert [epoch["images"] for epoch in results[SUPER]] == [READ - 1] * 3
    assert [epoch["decodes"] for epoch in results[PILLOW]] == [READ - 1] * 3
    assert [epoch["decodes"] for epoch in results[SUPER]] == [READ - 1, 0, 0]
    assert all(epoch["cpu_s"] > 0 for epoch in results[PILLOW] + results[SUPER])
    assert results[SUPER][0]["wall_s"] > results[SUPER][1]["wall_s"], "the first epoch includes start-up"
    assert [file.name for file in place.glob("super-demo-*")] == []


@pytest.mark.slow
def test_the_printed_script_runs(place):
    directory = str(write_images(place / 'my "own" images', IMAGES))
    text = script_lines(directory).replace("...  #", "print(len(labels))  #")
    (place / "script.py").write_text(text)
    assert python(sys.executable, "script.py", place=place).split() == ["40"] * 3
