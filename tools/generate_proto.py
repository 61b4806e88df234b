"""Generates the gRPC stubs of ``super_wire/coordinator.proto``, or checks that the generator makes the same.

It runs in ``.venv-proto``, which holds the grpcio-tools of ``proto-requirements.txt``: old on purpose, for
stubs refuse a protobuf or grpcio older than their generator. Python 3.14 and later have no wheel of it: there
nothing is checked.

Exit codes: 0 fine, 1 the check found a difference, 2 the generator is missing or failed.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "tools" / "proto-requirements.txt"
PROTO = "superdl/super_wire/coordinator.proto"
STUBS = (
    "superdl/super_wire/coordinator_pb2.py",
    "superdl/super_wire/coordinator_pb2.pyi",
    "superdl/super_wire/coordinator_pb2_grpc.py",
)
LAST_PYTHON_WITH_WHEELS = (3, 13)


class GeneratorError(Exception):
    """The stubs could not be generated; the message says why and what to do."""


def main(argv: list[str] | None = None) -> int:
    """Generate, or with ``--check`` compare; return the exit code."""
    parser = argparse.ArgumentParser(description="Generate the gRPC stubs, or check them.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if the stubs differ")
    parser.add_argument("--root", type=Path, default=ROOT, help="the tree to work on (default: this one)")
    arguments = parser.parse_args(argv)
    root, faults = arguments.root, []
    try:
        if arguments.check:
            faults = check(root)
        else:
            compile_proto(root, root)
            print("\n".join(STUBS))
    except GeneratorError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for fault in faults:
        print(f"error: {fault}: run `make proto` and commit what it changes", file=sys.stderr)
    return 1 if faults else 0


def check(root: Path) -> list[str]:
    """Name each file of ``root`` that is not what the generator makes of the definition."""
    missing = [f"{name} is missing" for name in (PROTO, *STUBS) if not (root / name).is_file()]
    if missing:
        return missing
    if sys.version_info[:2] > LAST_PYTHON_WITH_WHEELS and installed_version() is None:
        print(f"grpcio-tools {pinned_version()} has no wheel for this Python: the stubs are not checked.")
        return []
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder)
        compile_proto(root, fresh)
        differing = [name for name in STUBS if (fresh / name).read_bytes() != (root / name).read_bytes()]
    return [f"{name} is not what grpcio-tools {pinned_version()} makes of {PROTO}" for name in differing]


def compile_proto(root: Path, target: Path) -> None:
    """Write the stubs below ``target``; protoc runs in ``root``, so that imports start at superdl.

    Raises:
        GeneratorError: grpcio-tools is missing here, has another version than the pinned one, or refuses.
    """
    last_python = ".".join(map(str, LAST_PYTHON_WITH_WHEELS))
    if installed_version() != pinned_version():
        raise GeneratorError(
            f"this needs grpcio-tools {pinned_version()}, so Python {last_python} or older, but "
            f"{sys.executable} (Python {sys.version.split()[0]}) has {installed_version() or 'none'}; "
            "run `make clean` and then `make proto PYTHON=python3.13`, or an older one"
        )
    outputs = [f"--{kind}_out={target}" for kind in ("python", "pyi", "grpc_python")]
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", ".", *outputs, PROTO]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode != 0:
        raise GeneratorError(f"protoc refuses {PROTO}:\n{done.stderr.strip()}")


def installed_version() -> str | None:
    """Version of grpcio-tools in this environment, if it is there."""
    try:
        return metadata.version("grpcio-tools")
    except metadata.PackageNotFoundError:
        return None


def pinned_version() -> str:
    """Version of grpcio-tools that the stubs are made with."""
    found = re.search(r"^grpcio-tools==([\w.]+)", REQUIREMENTS.read_text(encoding="utf-8"), re.MULTILINE)
    return found[1] if found else ""


if __name__ == "__main__":
    sys.exit(main())
