"""Which commit runs: of a checkout of ours, with real git, and of nobody else's."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from superdl.experiments.checkout import checkout_at


@pytest.fixture
def checkout(tmp_path):
    git(tmp_path, "init", "--quiet")
    (tmp_path / "file").write_text("one")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "--quiet", "--message", "one")
    return tmp_path


def git(directory, *words):
    identity = ("-c", "user.name=x", "-c", "user.email=x", "-c", "commit.gpgsign=false")
    done = subprocess.run(
        [shutil.which("git"), "-C", directory, *identity, *words],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.strip()


def test_a_commit_and_whether_tracked_files_differ(checkout, monkeypatch):
    monkeypatch.setenv("GIT_DIR", "/nowhere")  # a hook sets it, and it is not about this checkout
    found = checkout_at(checkout)
    monkeypatch.delenv("GIT_DIR")
    assert (found.commit, found.dirty) == (git(checkout, "rev-parse", "HEAD"), False)
    (checkout / "untracked").write_text("x")
    assert not checkout_at(checkout).dirty
    (checkout / "file").write_text("two")
    assert checkout_at(checkout).dirty


def test_a_repository_further_up_is_not_ours(checkout):
    (checkout / "site-packages").mkdir()
    assert checkout_at(checkout / "site-packages") is None


def test_without_a_commit_or_without_git_nothing_is_claimed(tmp_path, checkout, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert checkout_at(checkout) is None
    monkeypatch.undo()
    (tmp_path / "new").mkdir()
    git(tmp_path / "new", "init", "--quiet")
    assert checkout_at(tmp_path / "new") is None
