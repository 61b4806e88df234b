"""The directory of a run: its path, privacy, lock and removal."""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from superdl.super_wire.errors import EmbeddedError
from superdl.super_wire.run_directory import RunDirectory

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def base(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def directory(tmp_path):
    return RunDirectory(tmp_path / "superdl-7" / "run")


def test_each_run_has_its_own_directory(monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/short")
    one = RunDirectory.of_run("elastic:a/../b")
    assert one.path == RunDirectory.of_run("elastic:a/../b").path
    assert one.path != RunDirectory.of_run("elastic:b").path
    assert one.path.parent == Path(f"/short/superdl-{os.getuid()}"), "a run's name is no path"


def test_the_path_of_a_socket_is_short_enough(base, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(base / ("x" * 80)))
    directory = RunDirectory.of_run("run")
    assert directory.path.parent.parent == Path("/tmp")
    assert len(str(directory.coordinator_socket)) <= 100


def test_running_coordinators_of_this_user_are_listed(monkeypatch):
    with tempfile.TemporaryDirectory(prefix="super-i-") as place, socket.socket(socket.AF_UNIX) as listener:
        monkeypatch.setattr(tempfile, "tempdir", place)
        assert RunDirectory.of_this_user() == []
        runs = [RunDirectory.of_run(name) for name in ("ended", "alive", "young")]
        for run in runs:
            with run.locked_for_start(1.0):
                run.create()
        runs[0].coordinator_socket.touch()
        listener.bind(str(runs[1].coordinator_socket))
        listener.listen()
        assert [run.path for run in RunDirectory.of_this_user()] == [runs[1].path]
        runs[1].path.parent.chmod(0o755)
        assert RunDirectory.of_this_user() == [], "others could have put it there"


def test_the_directory_is_private_and_removed_as_a_whole(directory):
    with directory.locked_for_start(1.0):
        directory.create()
        directory.create()
        directory.log.write_text("words\n")
        assert {d.stat().st_mode & 0o777 for d in (directory.path, directory.path.parent)} == {0o700}
        directory.remove()
    assert not list(directory.path.parent.iterdir())


def test_a_link_and_a_shared_directory_are_refused(directory, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    directory.path.parent.symlink_to(elsewhere)
    with pytest.raises(EmbeddedError), directory.locked_for_start(1.0):
        pass
    (elsewhere / directory.path.name).mkdir()
    (elsewhere / directory.path.name).chmod(0o770)
    with pytest.raises(EmbeddedError):
        directory.create()


HOLDER = """
import sys
from pathlib import Path
from superdl.super_wire.run_directory import RunDirectory

with RunDirectory(Path(sys.argv[1])).locked_for_start(5.0):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def held_elsewhere(run):
    """Hold the run's start lock in another process."""
    command = [sys.executable, "-c", HOLDER, str(run.path)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        try:
            assert holder.stdout.readline() == "held\n"
            yield holder
        finally:
            holder.kill()


def test_waiting_for_the_start_lock_is_bounded(directory):
    with directory.locked_for_start(1.0):
        directory.create()
    with held_elsewhere(directory) as holder:
        with pytest.raises(EmbeddedError, match=r"held.*for 0.1 s"), directory.locked_for_start(0.1):
            pass
        holder.kill()
        with directory.locked_for_start(30.0):
            pass


def test_only_directories_of_killed_runs_are_swept(monkeypatch):
    with tempfile.TemporaryDirectory(prefix="super-i-") as place, socket.socket(socket.AF_UNIX) as listener:
        monkeypatch.setattr(tempfile, "tempdir", place)
        names = ("killed", "served", "held", "starting")
        killed, served, held, starting = runs = [RunDirectory.of_run(name) for name in names]
        for run in runs:
            with run.locked_for_start(1.0):
                run.create()
        killed.ranks_socket.touch()
        listener.bind(str(served.ranks_socket))
        listener.listen()
        with held_elsewhere(starting):
            RunDirectory.sweep({held.path})
            kept = {path.name for path in killed.path.parent.iterdir() if path.is_dir()}
            assert kept == {run.path.name for run in (served, held, starting)}
