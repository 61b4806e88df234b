"""``superdl demo``: measurements of real processes, the script that it prints, and folders it cannot read."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from superdl.experiments.loaders.demo import PILLOW, SUPER
from superdl.main import main
from tests.fixtures.images import write_images

SUPERDL = Path(sys.executable).with_name("superdl")
IMAGES, READ, BROKEN = 40, 30, "cat/00002.jpg"


@pytest.fixture
def place():
    """A directory with a short path, because paths of unix sockets have 107 bytes at most."""
    with tempfile.TemporaryDirectory(prefix="super-t-") as folder:
        yield Path(folder)


def run(*words, place):
    own = {name: value for name, value in os.environ.items() if not name.startswith("SUPER_")}
    own |= {"TMPDIR": str(place), "SUPER_STORE": str(place / "store")}
    done = subprocess.run(words, cwd=place, env=own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.slow
def test_both_read_the_same_images_and_the_lines_at_the_end_run(place):
    folder = 'my "own" images'
    (write_images(place / folder, IMAGES) / BROKEN).write_bytes(b"no image")
    done = run(SUPERDL, "demo", folder, "--images", str(READ), "--json", place=place)
    results = json.loads(done.stdout)
    assert [epoch["images"] for epoch in results[PILLOW]] == [READ - 1] * 3
    assert [epoch["images"] for epoch in results[SUPER]] == [READ - 1] * 3
    assert [epoch["decodes"] for epoch in results[PILLOW]] == [READ - 1] * 3
    assert [epoch["decodes"] for epoch in results[SUPER]] == [READ - 1, 0, 0]
    assert all(epoch["cpu_s"] > 0 for epoch in results[PILLOW] + results[SUPER])
    assert results[SUPER][0]["wall_s"] > results[SUPER][1]["wall_s"], "the first epoch includes start-up"
    assert [file.name for file in place.glob("super-demo-*")] == []
    # As they are pasted, although an image is broken.
    lines = done.stderr.partition("In your script:\n\n")[2]
    (place / "script.py").write_text(lines.replace("...  #", "print(len(labels))  #"))
    pasted = run(sys.executable, "script.py", place=place)
    assert pasted.stdout.split() == [str(IMAGES - 1)] * 3


@pytest.mark.slow
def test_a_folder_of_splits_is_read_in_its_train_and_broken_images_alone_end_it(place, capsys):
    for name in "ab":
        (place / "train" / name).mkdir(parents=True)
        (place / "train" / name / "1.jpg").write_bytes(b"no image")
    assert main(["demo", str(place)]) == 2
    shown = capsys.readouterr()
    assert f"using the split {place}/train" in shown.out
    assert f"superdl doctor {place}/train --all" in shown.err


@pytest.mark.parametrize(("files", "words"), [((), "cats/1.jpg"), (("1.jpg",), "--labels none")])
def test_a_folder_without_class_folders_is_refused_with_what_to_do(files, words, tmp_path, capsys):
    for name in files:
        (tmp_path / name).write_bytes(b"")
    assert main(["demo", str(tmp_path)]) == 2
    assert words in capsys.readouterr().err
