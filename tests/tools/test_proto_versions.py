"""Sees that the generator of the gRPC stubs is the one that the oldest grpcio and protobuf go with."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


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
