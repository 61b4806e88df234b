"""The whole of it: real coordinators, and the embedded default, from the command's words to its exit code."""

import socket

import pytest

from superdl.main import main
from tests.fixtures.images import write_images
from tests.fixtures.stack import Stack
from tests.superdl.doctor.conftest import judged, only

OTHER_VERSION = """
import importlib.metadata as metadata
real = metadata.version
metadata.version = lambda name: "9.9.9" if name == "superdl" else real(name)
"""
RECIPE = ("--resize", "32", "--crop", "32")


def test_everything_from_the_coordinators_address_alone(stack, images, capsys):
    words = (str(images), *RECIPE, "--coordinator", stack.address)
    expected = {"coordinator": ["ok"], "sample": ["ok"], "shared_memory": ["ok"], "listing": ["skip"]}
    found = judged(capsys, *words, cache=["ok", stack.valkey.unix_url], **expected)
    assert "4 of 150 samples" in found["sample"]["reason"]
    assert not stack.log.read_text().count("WARNING")
    judged(capsys, *words, sample=["ok"])  # functions are tried again, although the cache has all of it
    with stack.valkey.client() as client:
        assert len(client.keys("super:r1:*")) >= 8


def test_what_people_see_of_it(stack, monkeypatch, capsys):
    monkeypatch.setenv("SUPER_COORDINATOR", stack.address)
    assert main(["doctor", "--cache", stack.valkey.url]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert any(line.startswith("ok    coordinator") and stack.address in line for line in shown)
    assert any(line.startswith("warn  cache ") and stack.valkey.unix_url in line for line in shown)
    assert any(line.startswith("skip  sample") for line in shown)
    assert " 0 fail" in shown[-1]


@pytest.mark.slow
def test_the_embedded_default(images, capsys):
    judged(capsys, images.as_uri(), *RECIPE, sample=["ok"], coordinator=["skip"])


@pytest.mark.slow
def test_a_coordinator_that_never_answers_holds_nobody_for_ever(valkey, monkeypatch, capsys):
    only(monkeypatch, "coordinator", "cache", "sample")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        expected = {"cache": ["ok"], "sample": ["skip"]}
        expected |= {"coordinator": ["fail", "CoordinatorUnreachableError"]}
        found = judged(capsys, "--coordinator", address, "--cache", valkey.url, **expected)
    assert found["coordinator"]["seconds"] < 30


@pytest.mark.slow
def test_a_coordinator_of_another_version(tmp_path, monkeypatch, capsys):
    (tmp_path / "sitecustomize.py").write_text(OTHER_VERSION)
    with Stack(environment={"PYTHONPATH": str(tmp_path)}) as running:
        judged(capsys, "--coordinator", running.address, coordinator=["warn", "it runs SUPER 9.9.9"])


def test_all_decodes_everything_and_lists_every_bad_file(stack, tmp_path, capsys, monkeypatch):
    only(monkeypatch, "listing", "coordinator")
    good, dirty = (write_images(tmp_path / name, 12) for name in ("good", "dirty"))
    broken = [f"{name}/broken.jpg" for name in ("ant", "bee", "dog")]
    for name in broken:
        (dirty / name).write_text("no image")
    words = (*RECIPE, "--coordinator", stack.address, "--all")
    judged(capsys, str(good), *words, all_samples=["ok", "all 12 samples"])
    judged(capsys, str(dirty), *words, all_samples=["fail", "3 of 15 samples", *broken])
