"""All checks with real coordinators, from the command line to the exit code."""

import pytest

from superdl.coordinator.executors.local_worker import LocalExecutor
from tests.fixtures.images import write_images
from tests.fixtures.stack import Stack
from tests.superdl.doctor.conftest import check_findings, only

OTHER_VERSION = """
import importlib.metadata as metadata
real = metadata.version
metadata.version = lambda name: "9.9.9" if name == "superdl" else real(name)
"""
RECIPE = ("--resize", "32", "--crop", "32")


def test_everything_from_the_coordinators_address_alone(stack, images, capsys):
    words = (str(images), *RECIPE, "--coordinator", stack.address)
    expected = {"coordinator": ["ok"], "sample": ["ok"], "shared_memory": ["ok"], "listing": ["skip"]}
    found = check_findings(capsys, *words, cache=["ok", stack.valkey.unix_url], **expected)
    assert "4 of 150 samples" in found["sample"]["reason"]
    assert not stack.log.read_text().count("WARNING")
    check_findings(capsys, *words, sample=["ok"])  # under new ids, so functions run again
    with stack.valkey.client() as client:
        assert len(client.keys("super:r1:*")) >= 8


@pytest.mark.slow
def test_a_coordinator_of_another_version(tmp_path, monkeypatch, capsys):
    (tmp_path / "sitecustomize.py").write_text(OTHER_VERSION)
    with Stack(environment={"PYTHONPATH": str(tmp_path)}) as running:
        check_findings(capsys, "--coordinator", running.address, coordinator=["warn", "it runs SUPER 9.9.9"])


def test_the_embedded_defaults_function_is_tried_in_one_slot(monkeypatch, capsys):
    assert LocalExecutor.trial_settings == {"slots": 1}  # on two cores, also the default
    only(monkeypatch, "function")
    check_findings(capsys, function=["ok", "starts in its own process"])


def test_all_decodes_everything_and_lists_every_bad_file(stack, tmp_path, capsys, monkeypatch):
    only(monkeypatch, "listing", "coordinator")
    good, dirty = (write_images(tmp_path / name, 12) for name in ("good", "dirty"))
    broken = [f"{name}/broken.jpg" for name in ("ant", "bee", "dog")]
    for name in broken:
        (dirty / name).write_text("no image")
    words = (*RECIPE, "--coordinator", stack.address, "--all")
    check_findings(capsys, str(good), *words, all_samples=["ok", "all 12 samples"])
    check_findings(capsys, str(dirty), *words, all_samples=["fail", "3 of 15 samples", *broken])
