"""Sees that a missing definition or stub is named, and that the pins agree."""

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
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(tree, name, capsys):
    (tree / name).unlink()
    assert generate_proto.main(["--check", "--root", str(tree)]) == 1
    assert f"{name} is missing" in capsys.readouterr().err


def test_another_generator_is_refused(monkeypatch, tree, capsys):
    monkeypatch.setattr(generate_proto, "installed_version", lambda: "1.0.0")
    assert generate_proto.main(["--root", str(tree)]) == 2
    assert re.search(r"needs grpcio-tools .* has 1\.0\.0", capsys.readouterr().err)


def test_the_oldest_grpcio_and_protobuf_are_the_generators():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    bounds = dict(re.findall(r"^([\w-]+)>=([\d.]+)", "\n".join(project["dependencies"]), re.MULTILINE))
    grpc, messages = (
        (ROOT / f"super_wire/coordinator_{name}.py").read_text("utf-8") for name in ("pb2_grpc", "pb2")
    )
    pinned = generate_proto.pinned_version()
    assert f"GRPC_GENERATED_VERSION = '{pinned}'" in grpc
    assert bounds["grpcio"] == bounds["grpcio-health-checking"] == pinned
    assert f"# Protobuf Python Version: {bounds['protobuf']}\n" in messages
    assert "\nfrom superdl.super_wire import coordinator_pb2 as " in grpc
