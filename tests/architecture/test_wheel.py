"""Builds the wheel and sees that it holds the packages, whole, and nothing else."""

import os
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
SHIPPED_SUFFIXES = {".py", ".pyi", ".proto", ".toml", ".yaml", ".html", ".typed", ".jpg", ".png"}


def run(*command, cwd=ROOT, first_on_path=None):
    environment = os.environ | ({"PYTHONPATH": str(first_on_path)} if first_on_path else {})
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, check=False, timeout=100, env=environment
    )
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
    assert "superdl/experiments/reporting/templates/run.html" in expected


def test_an_archive_of_the_sources_makes_the_same_wheel(wheel, tmp_path):
    run(sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", str(tmp_path))
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        files.extractall(tmp_path, filter="data")
    (folder,) = [path for path in tmp_path.iterdir() if path.is_dir()]
    build = [sys.executable, "-m", "hatchling", "build"]
    run(*build, "--target", "wheel", "--directory", str(tmp_path), cwd=folder)
    (again,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(again) as made:
        assert sorted(made.namelist()) == sorted(wheel.namelist())


@pytest.fixture(scope="module")
def unpacked(wheel, tmp_path_factory):
    folder = tmp_path_factory.mktemp("unpacked")
    wheel.extractall(folder)  # noqa: S202  # made here
    return folder


@pytest.mark.parametrize("installed", [pytest.param("checkout", marks=pytest.mark.slow), "wheel"])
@pytest.mark.parametrize(
    "kind", ["folder", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("file", "package"))]
)
def test_names_of_the_users_hide_nothing_and_are_not_hidden(kind, installed, tmp_path, request):
    place = request.getfixturevalue("unpacked") if installed == "wheel" else None
    for name in FOLDERS:
        if kind == "file":
            (tmp_path / f"{name}.py").write_text("mine = True\n", encoding="utf-8")
            continue
        (tmp_path / name).mkdir()
        (tmp_path / name / "part.py").write_text("mine = True\n", encoding="utf-8")
        if kind == "package":
            (tmp_path / name / "__init__.py").write_text("", encoding="utf-8")
    theirs = ", ".join(f"{name}{'' if kind == 'file' else '.part'}" for name in sorted(FOLDERS))
    ours = ", ".join(f"superdl.{name}" for name in sorted(FOLDERS))
    program = (
        f"import {theirs}, {ours}; import superdl.coordinator.__main__; print(sampler.__file__)\n"
        f"print(all(one.mine for one in ({theirs},)), superdl.__file__)"
    )
    # As a script of the user's is run: its folder comes first on the path.
    (tmp_path / "script.py").write_text(program, encoding="utf-8")
    said = run(sys.executable, str(tmp_path / "script.py"), cwd=tmp_path, first_on_path=place).splitlines()
    files = {"file": "sampler.py", "package": "sampler/__init__.py"}
    assert said == [
        str(tmp_path / files[kind]) if kind in files else "None",
        f"True {(place or ROOT) / 'superdl/__init__.py'}",
    ]
    assert "usage: superdl" in run(
        sys.executable, "-m", "superdl.main", "--help", cwd=tmp_path, first_on_path=place
    )


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
