"""The locks pin what pyproject.toml declares, by hash; the gRPC stubs go with the oldest grpcio."""

import re
import tomllib
from itertools import combinations

import pytest
from packaging.requirements import Requirement

from tools.lock_requirements import ROOT, locks


def pinned(file):
    """Versions by name."""
    return dict(re.findall(r"(?m)^([\w.-]+)==(\S+) ", (ROOT / file).read_text(encoding="ascii")))


@pytest.mark.parametrize("file", locks())
def test_pins_are_hashed_and_what_pyproject_allows(file):
    declared = {name: Requirement(text) for name, text in locks()[file].items()}
    text = (ROOT / file).read_text(encoding="ascii")
    pins = pinned(file)
    wrong = [name for name in declared if not declared[name].specifier.contains(pins.get(name, "0"))]
    assert not wrong, "run make lock"
    entries = re.split(r"(?m)^(?=\w)", text)[1:]
    assert len(entries) == len(pins)
    assert all("--hash=sha256:" in entry for entry in entries)
    assert "://" not in text, "addresses of an index"


def test_what_is_installed_together_agrees():
    docker = [pinned(file) for file in locks() if "/docker/" in file]
    function = [pinned(file) for file in locks() if "/function/" in file]
    assert docker
    assert function
    for first, second in [*combinations(docker, 2), *combinations(function, 2)]:
        assert all(first[name] == second[name] for name in first.keys() & second.keys())


def test_the_coordinators_functions_and_lambdas_decode_alike():
    function = pinned("infra/function/requirements.txt")
    assert function.items() <= pinned("infra/docker/coordinator-requirements.txt").items()
    assert not function.keys() & {"boto3", "botocore", "s3transfer", "urllib3"}, "Lambda's runtime has them"


def test_the_oldest_grpcio_and_protobuf_are_the_generators():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    bounds = dict(re.findall(r"^([\w-]+)>=([\d.]+)", "\n".join(project["dependencies"]), re.MULTILINE))
    grpc, messages = (
        (ROOT / f"super_wire/coordinator_{name}.py").read_text("utf-8") for name in ("pb2_grpc", "pb2")
    )
    requirements = (ROOT / "tools" / "proto-requirements.txt").read_text(encoding="utf-8")
    (pinned,) = re.findall(r"^grpcio-tools==([\d.]+)", requirements, re.MULTILINE)
    assert f"GRPC_GENERATED_VERSION = '{pinned}'" in grpc
    assert bounds["grpcio"] == bounds["grpcio-health-checking"] == pinned
    assert f"# Protobuf Python Version: {bounds['protobuf']}\n" in messages
    assert "\nfrom superdl.super_wire import coordinator_pb2 as " in grpc
