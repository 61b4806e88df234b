"""A coordinator's scratch directory goes with it, and with the next one's start if it was killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from superdl.coordinator.executors.local import Scratch

ANOTHER = """
import sys
from pathlib import Path
from superdl.coordinator.executors.local import Scratch
mine = Scratch(Path(sys.argv[1]))
print(mine.path, flush=True)
sys.stdin.read()
"""


def test_those_of_killed_processes_go_and_those_of_living_ones_stay(tmp_path):
    parent = tmp_path / "not" / "there yet"
    command = [sys.executable, "-c", ANOTHER, str(parent)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as another:
        theirs = Path(another.stdout.readline().strip())
        (theirs / "block").write_bytes(b"x" * 1000)
        mine = Scratch(parent)
        assert set(parent.iterdir()) == {theirs, Path(mine.path)}
        another.kill()
    (Path(mine.path) / "block").write_bytes(b"x")
    mine.remove()
    assert set(parent.iterdir()) == {theirs}
    last = Scratch(parent)
    assert set(parent.iterdir()) == {Path(last.path)}
    last.remove()


def test_a_place_that_cannot_be_had_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        Scratch(tmp_path / "file")
