"""Sees that a changed definition or stub is found, also without the generator, and that the pins agree."""

from __future__ import annotations

import re
import shutil
import tomllib
from pathlib import Path

import pytest

from tools import generate_proto

ROOT = Path(__file__).resolve().parents[2]
FILES = (generate_proto.PROTO, *generate_proto.STUBS)


@pytest.fixture
def tree(tmp_path):
    for name in (*FILES, generate_proto.DIGESTS):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def lower_bound(package: str) -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (requirement,) = [line for line in project["dependencies"] if re.match(rf"{package}[>=]", line)]
    return re.search(r">=([\d.]+)", requirement)[1]


def test_digests_of_the_tree_are_recorded(tree):
    assert generate_proto.check_digests(tree) == []


@pytest.mark.parametrize("name", FILES)
def test_a_changed_file_is_named(tree, name):
    with (tree / name).open("a", encoding="utf-8") as file:
        file.write("\n")
    (fault,) = generate_proto.check_digests(tree)
    assert fault.startswith(f"{name} was changed")


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(tree, name, capsys):
    (tree / name).unlink()
    assert generate_proto.main(["--check", "--root", str(tree)]) == 1
    assert f"{name} is missing" in capsys.readouterr().err


def test_another_generator_is_refused(monkeypatch):
    monkeypatch.setattr(generate_proto, "installed_version", lambda: "1.0.0")
    with pytest.raises(generate_proto.GeneratorError, match=r"needs grpcio-tools .* has 1\.0\.0"):
        generate_proto.require_generator()


def test_oldest_grpcio_is_the_generators():
    stub = (ROOT / "super_wire/coordinator_pb2_grpc.py").read_text(encoding="utf-8")
    pinned = generate_proto.pinned_version()
    assert f"GRPC_GENERATED_VERSION = '{pinned}'" in stub
    assert lower_bound("grpcio") == lower_bound("grpcio-health-checking") == pinned


def test_oldest_protobuf_is_the_generators():
    stub = (ROOT / "super_wire/coordinator_pb2.py").read_text(encoding="utf-8")
    assert f"# Protobuf Python Version: {lower_bound('protobuf')}\n" in stub


def test_stubs_are_imported_from_their_package():
    stub = (ROOT / "super_wire/coordinator_pb2_grpc.py").read_text(encoding="utf-8")
    assert "\nfrom superdl.super_wire import coordinator_pb2 as " in stub
