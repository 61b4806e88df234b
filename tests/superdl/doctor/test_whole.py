"""The whole of it: real coordinators, and the embedded default, from the command's words to its exit code."""

from __future__ import annotations

import socket

import pytest

from superdl.main import main
from tests.fixtures.images import write_images
from tests.fixtures.stack import Stack
from tests.superdl.doctor.conftest import asked, only

OTHER_VERSION = """
import importlib.metadata as metadata
real = metadata.version
metadata.version = lambda name: "9.9.9" if name == "superdl" else real(name)
"""
RECIPE = ("--resize", "32", "--crop", "32")
ALL = (
    *("listing", "coordinator", "cache", "cache memory"),
    *("sample", "dataset fits"),
)


def test_everything_from_the_coordinators_address_alone(stack, images, capsys):
    words = (
        str(images),
        *RECIPE,
        "--coordinator",
        stack.address,
    )
    code, found = asked(capsys, *words)
    assert code == 0, found
    assert {check: found[check]["verdict"] for check in ALL} == dict.fromkeys(ALL, "ok")
    assert stack.valkey.unix_url in found["cache"]["reason"]
    assert found["credentials"]["verdict"] == "skip"
    assert found["sample"]["measured"]["samples"] == 150
    assert (
        found["dataset fits"]["measured"]["need_bytes"] == 150 * found["sample"]["measured"]["record_bytes"]
    )
    assert not stack.log.read_text().count("WARNING")
    code, found = asked(capsys, *words)  # functions are tried again, although the cache has all of it
    assert code == 0, found
    assert found["sample"]["verdict"] == "ok"
    with stack.valkey.client() as client:
        assert len(client.keys("super:r1:*")) >= 8


def test_what_people_see_of_it(stack, monkeypatch, capsys):
    monkeypatch.setenv("SUPER_COORDINATOR", stack.address)
    assert main(["doctor", "--cache", stack.valkey.url]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert any(line.startswith("ok    coordinator") and stack.address in line for line in shown)
    assert any(line.startswith("warn  cache ") and stack.valkey.unix_url in line for line in shown)
    assert any(line.startswith("skip  sample") for line in shown)
    assert any(line.startswith(" ") and "s3://bucket/prefix" in line for line in shown)
    assert shown[-1].endswith(" skip")
    assert " 0 fail" in shown[-1]


@pytest.mark.slow
def test_the_embedded_default(images, capsys):
    code, found = asked(capsys, images.as_uri(), *RECIPE)
    assert code == 0, found
    assert found["sample"]["verdict"] == "ok"
    assert found["coordinator"]["verdict"] == "skip"


@pytest.mark.slow
def test_a_coordinator_that_never_answers_holds_nobody_for_ever(valkey, monkeypatch, capsys):
    only(monkeypatch, "coordinator", "cache", "cache memory", "sample")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        code, found = asked(capsys, "--coordinator", address, "--cache", valkey.url)
    assert code == 1
    assert "CoordinatorUnreachableError" in found["coordinator"]["reason"]
    assert found["coordinator"]["seconds"] < 30
    assert found["cache"]["verdict"] == found["cache memory"]["verdict"] == "ok"
    assert found["sample"]["verdict"] == "skip"


@pytest.mark.slow
def test_a_coordinator_of_another_version(tmp_path, monkeypatch, capsys):
    (tmp_path / "sitecustomize.py").write_text(OTHER_VERSION)
    with Stack(environment={"PYTHONPATH": str(tmp_path)}) as running:
        code, found = asked(capsys, "--coordinator", running.address)
    assert code == 0
    assert found["coordinator"]["verdict"] == "warn"
    assert "it is SUPER 9.9.9" in found["coordinator"]["reason"]


def test_all_decodes_everything_and_lists_every_bad_file(stack, tmp_path, capsys, monkeypatch):
    only(monkeypatch, "listing", "coordinator")
    good, dirty = (write_images(tmp_path / name, 12) for name in ("good", "dirty"))
    broken = [f"{name}/broken.jpg" for name in ("ant", "bee", "dog")]
    for name in broken:
        (dirty / name).write_text("no image")
    words = (*RECIPE, "--coordinator", stack.address, "--batch-size", "1", "--all")
    code, found = asked(capsys, str(good), *words)
    assert (code, found["all samples"]["measured"]["samples"]) == (0, 12)
    code, found = asked(capsys, str(dirty), *words)
    assert code == 1
    assert [name in found["all samples"]["reason"] for name in broken] == [True] * 3
    assert found["all samples"]["measured"] == {"samples": 12, "bad": 3}
