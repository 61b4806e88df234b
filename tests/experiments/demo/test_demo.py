"""``superdl demo``: what real processes measure, what it says of that, and the lines at its end."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from superdl.experiments.console import Console
from superdl.experiments.demo.measuring import PILLOW, SUPER, Epoch, Task
from superdl.experiments.demo.showing import Shown
from superdl.main import main
from tests.fixtures.images import write_images

SUPERDL = Path(sys.executable).with_name("superdl")
IMAGES, READ, BROKEN = 40, 30, "cat/00002.jpg"


@pytest.fixture
def place():
    """A short directory of temporary files, for unix sockets' paths have 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="super-t-") as folder:
        yield Path(folder)


def python(*words, place):
    own = {name: value for name, value in os.environ.items() if not name.startswith("SUPER_")}
    own |= {"TMPDIR": str(place), "SUPER_STORE": str(place / "store")}
    done = subprocess.run(words, cwd=place, env=own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_both_read_the_same_images_and_super_decodes_each_once(place):
    (write_images(place / "mine", IMAGES) / BROKEN).write_bytes(b"no image")
    told = json.loads(python(SUPERDL, "demo", "mine", "--images", str(READ), "--json", place=place))
    assert [epoch["images"] for epoch in told[PILLOW]] == [READ - 1] * 3
    assert [epoch["images"] for epoch in told[SUPER]] == [READ - 1] * 3
    assert [epoch["decodes"] for epoch in told[PILLOW]] == [READ - 1] * 3
    assert [epoch["decodes"] for epoch in told[SUPER]] == [READ - 1, 0, 0]
    assert all(epoch["cpu_s"] > 0 for epoch in told[PILLOW] + told[SUPER])
    assert told[SUPER][0]["wall_s"] > told[SUPER][1]["wall_s"], "the first epoch has the start in it"
    assert "1 image cannot be decoded" in Path(told["page"]).read_text()
    assert [file.name for file in place.glob("super-demo-*")] == []


@pytest.mark.slow
def test_the_lines_run_as_they_are_printed(place):
    directory = str(write_images(place / 'my "own" images', IMAGES))
    text = Shown("", IMAGES, task_of(directory), {}).lines().replace("...  #", "print(len(labels))  #")
    (place / "script.py").write_text(text)
    assert python(sys.executable, "script.py", place=place).split() == ["30", "10"] * 3


def task_of(directory):
    return Task(SUPER, directory, None, 1, batch_size=30, workers=2, resize=256, crop=224)


def shown(capsys, *, count=1000):
    epochs = {
        PILLOW: [Epoch(1000, 1000, wall_s, 4.0) for wall_s in (2.0, 2.0, 2.5)],
        SUPER: [Epoch(1000, 1000, 4.0, 6.0), Epoch(1000, 0, 0.05, 0.02), Epoch(1000, 0, 1.25, 1.0)],
    }
    told = Shown("1,000 images", count, task_of("/data/mine"), epochs)
    told.print(Console(width=80), Path("report.html"))
    return capsys.readouterr().out, told.page()


def test_each_column_is_summed_up_also_where_super_loses(capsys):
    text, page = shown(capsys)
    for sentence in (
        "First epoch: SUPER reads 50% of the images/s of DataLoader + Pillow for 1.5 times its CPU.",
        "Second epoch: SUPER reads 40 times the images/s of DataLoader + Pillow for 0.50% of its CPU.",
        "Fresh process: SUPER reads 2.0 times the images/s of DataLoader + Pillow for 25% of its CPU.",
        "Its start (about 1.2 s) is in the first and the last column",
        "Ten such epochs: 20.0 s with DataLoader + Pillow, 4.45 s with SUPER.",
    ):
        assert sentence in text.replace("\n", " ")
        assert sentence in page
    assert re.search(r"images decoded: SUPER +1,000 +0 +0", text)
    assert re.search(r"images/s: SUPER +250 +20,000 +800", text)
    assert "cannot be decoded" not in text
    assert "3 images cannot be decoded" in shown(capsys, count=1003)[0]


def test_the_longest_bar_is_the_fastest_epochs(capsys):
    bars = {name: len(bar) for name, bar in re.findall(r"^  (.+?)  +(█+) ", shown(capsys)[0], re.MULTILINE)}
    assert len(bars) == 6
    assert max(bars, key=bars.get) == "second epoch, SUPER"
    assert bars["first epoch, DataLoader + Pillow"] == pytest.approx(
        bars["second epoch, SUPER"] / 40, abs=0.5
    )


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["nowhere"], "nowhere is no folder of this machine"),
        (["s3://bucket/train"], "is no folder of this machine"),
        ([".", "--images", "0"], "--images is above 0"),
    ],
)
def test_wrong_use_is_refused_before_anything_is_made(words, reason, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["demo", *words]) == 2
    assert reason in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("load", "told"), [(0.0, False), (1000.0, True)])
def test_a_busy_machine_is_named(load, told, monkeypatch, capsys):
    monkeypatch.setattr(os, "getloadavg", lambda: (load, load, load))
    assert main(["demo", "nowhere"]) == 2
    assert ("this machine is busy" in capsys.readouterr().out) is told
