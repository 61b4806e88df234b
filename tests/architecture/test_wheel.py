"""Builds the wheel and sees that it holds the packages, whole, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {"super_wire", "coordinator", "lambda_prefetch", "super_dataset", "sampler", "experiments"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DIST_INFO = f"superdl-{PROJECT['version']}.dist-info"
SHIPPED_SUFFIXES = {".py", ".pyi", ".proto", ".toml", ".yaml", ".html", ".typed"}


def run(*command, cwd=ROOT):
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    run(*command, "--wheel-dir", str(folder), str(ROOT))
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


def test_it_installs_one_name(wheel):
    assert {name.split("/")[0] for name in wheel.namelist()} == {"superdl", DIST_INFO}


def test_it_is_whole(wheel):
    in_tree = {
        path.relative_to(place.parent if folder == "superdl" else ROOT).as_posix()
        for folder in (*FOLDERS, "superdl")
        for place in [ROOT / folder]
        for path in place.rglob("*")
        if path.suffix in SHIPPED_SUFFIXES and "__pycache__" not in path.parts
    }
    expected = {name if name.startswith("superdl/") else f"superdl/{name}" for name in in_tree}
    assert expected == {name for name in wheel.namelist() if Path(name).suffix in SHIPPED_SUFFIXES}
    assert {"superdl/py.typed", "superdl/super_wire/coordinator.proto"} <= expected
    assert {"superdl/super_wire/coordinator_pb2.pyi", "superdl/experiments/specs/digits.yaml"} <= expected


def test_it_holds_the_data_that_packages_need(wheel):
    names = wheel.namelist()
    assert "super_wire/coordinator.proto" in names
    assert "super_wire/coordinator_pb2.pyi" in names
    assert "experiments/specs/digits.yaml" in names
    assert "experiments/reporting/templates/run.html" in names


def test_it_holds_no_leftovers(wheel):
    kinds = {Path(name).suffix for name in wheel.namelist() if ".dist-info/" not in name}
    assert kinds <= SHIPPED_SUFFIXES | {".md"}, "a new kind of file: is it meant to be shipped?"


def test_its_metadata_is_the_projects(wheel):
    metadata = Parser().parsestr(wheel.read(f"{DIST_INFO}/METADATA").decode())
    assert (metadata["Name"], metadata["Version"]) == (PROJECT["name"], PROJECT["version"])
    assert metadata["License-Expression"] == "Apache-2.0"
    assert set(metadata.get_all("Provides-Extra")) == set(PROJECT["optional-dependencies"])
    assert f"{DIST_INFO}/licenses/LICENSE" in wheel.namelist()
    entry_points = wheel.read(f"{DIST_INFO}/entry_points.txt").decode().split()
    assert " ".join(entry_points) == "[console_scripts] superdl = superdl.main:main"
