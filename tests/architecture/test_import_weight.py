"""Sees, in fresh processes, that importing a package does not drag in what its users should not pay for."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = "import importlib, sys; importlib.import_module(sys.argv[1]); print(*sys.modules)"

TRAINING = {"torch", "torchvision", "sklearn"}
GRPC = {"grpc", "google.protobuf", "superdl.super_wire.coordinator_pb2"}

# module: what importing it must not load
LIGHT = {
    "superdl.super_wire": TRAINING | GRPC | {"boto3", "PIL", "numpy"},
    "superdl.super_wire.protocol": {"importlib.metadata"},
    "superdl.coordinator.core": TRAINING | GRPC | {"boto3", "PIL", "asyncio"},
    "superdl.coordinator.server.server": TRAINING | {"boto3", "PIL", "pyarrow", "pydantic"},
    "superdl.lambda_prefetch.handler": TRAINING | GRPC | {"aws_lambda_powertools", "botocore"},
    "superdl.lambda_prefetch.worker.command": TRAINING | GRPC | {"boto3", "numpy"},
    "superdl.lambda_prefetch.worker.slot": TRAINING | GRPC | {"asyncio", "boto3", "numpy"},
    "superdl.super_dataset": GRPC | {"boto3", "PIL"},
    "superdl.sampler": GRPC | {"boto3", "PIL"},
    "superdl.coordinator.embedded.__main__": TRAINING | GRPC | {"boto3", "numpy"},
    "superdl": TRAINING | GRPC | {"boto3", "PIL", "numpy"},
    "superdl.main": TRAINING | GRPC | {"boto3", "PIL", "numpy"},
}


def loaded_by(module):
    """Names of all modules that a fresh interpreter has after importing ``module``."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, module],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize("module", sorted(LIGHT))
def test_importing_is_light(module):
    loaded = loaded_by(module)
    assert module in loaded
    assert not loaded & LIGHT[module]


def test_the_probe_sees_what_is_loaded():
    assert loaded_by("superdl.super_wire.coordinator_pb2_grpc") >= GRPC
