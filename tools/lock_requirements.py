"""Pins what runs on Lambda and in containers: exact versions with the hashes of their wheels, one file each.

``make lock`` runs it. pyproject.toml says which packages and versions may be. pip resolves them for the
oldest Python of the targets, then finds the same versions' wheels for each target. Environment markers are
judged by the Python that runs this, so the oldest one supported makes files that fit all.

Exit codes: 0 written, 1 pip could not resolve; its words are on stderr.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from itertools import product
from pathlib import Path

from tools.lambda_zip import LAMBDA_PYTHON, MACHINES, BundleError, Platform

__all__ = ["LOCKS", "main", "ranges"]

ROOT = Path(__file__).resolve().parent.parent
_TIME_LIMIT_S = 300.0
_PYTHONS = ("3.11", "3.12", LAMBDA_PYTHON)


_FUNCTION = ("aws-lambda-powertools", "numpy", "pillow", "xxhash")
LOCKS = {
    "infra/function/requirements.txt": (_FUNCTION, "what the function's package holds beside SUPER"),
    "infra/function/runtime-requirements.txt": (
        ("awslambdaric", "boto3"),
        "what Lambda's own runtime has, and an image must bring",
    ),
    "infra/docker/coordinator-requirements.txt": (
        # redis needs async-timeout below Python 3.11.3, which Debian 12 has; superdl stats prints by rich.
        (
            *_FUNCTION,
            *("async-timeout", "boto3", "grpcio", "grpcio-health-checking", "prometheus-client", "protobuf"),
            *("redis", "rich"),
        ),
        "the coordinator, and functions in its local pool",
    ),
    "infra/docker/parquet-requirements.txt": (("pyarrow",), "key lists in Parquet"),
    "infra/docker/otel-requirements.txt": (
        ("opentelemetry-exporter-otlp-proto-http", "opentelemetry-sdk"),
        "traces, and metrics that are pushed",
    ),
    "infra/docker/build-requirements.txt": (("hatchling",), "what builds SUPER's own wheel in an image"),
}
"""Each requirements file: the packages that it is for, without those that they need, and what it is."""


def main() -> int:
    """Write all files; return the exit code."""
    try:
        for name, (packages, purpose) in LOCKS.items():
            (ROOT / name).write_text(_locked(packages, purpose), encoding="ascii")
            print(name)
    except BundleError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _locked(packages: tuple[str, ...], purpose: str) -> str:
    """The text of a requirements file."""
    wanted = ranges()
    targets = [Platform(python, machine) for python, machine in product(_PYTHONS, MACHINES.values())]
    found = _resolve([wanted.get(name, name) for name in packages], targets[0])
    pins = {name: version for name, (version, _) in found.items()}
    hashes: defaultdict[str, set[str]] = defaultdict(set)
    for target in targets:
        exact = [f"{name}=={version}" for name, version in pins.items()]
        for name, (_, digest) in _resolve(exact, target, dependencies=False).items():
            hashes[name].add(digest)
    pythons = f"Python {_PYTHONS[0]} to {_PYTHONS[-1]}"
    lines = [f"# Made by `make lock`: {purpose}.", f"# For {pythons} on Linux, arm64 and x86_64."]
    for name in sorted(pins):
        digests = [f"--hash=sha256:{digest}" for digest in sorted(hashes[name])]
        lines.append(" \\\n    ".join([f"{name}=={pins[name]}", *digests]))
    return "\n".join(lines) + "\n"


def ranges() -> dict[str, str]:
    """What pyproject.toml requires of each package, by its name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    texts = [
        text.partition(";")[0].strip() for text in extras["dev"] + extras["parquet"] + project["dependencies"]
    ]
    return {re.split(r"[^A-Za-z0-9._-]", text, maxsplit=1)[0]: text for text in texts}


def _resolve(
    requirements: list[str], target: Platform, *, dependencies: bool = True
) -> dict[str, tuple[str, str]]:
    """What pip would install: version and SHA-256 of the wheel, by name."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        command += ["--report", str(report), "--target", folder, *target.pip_options()]
        command += [] if dependencies else ["--no-deps"]
        done = subprocess.run(
            [*command, *requirements], capture_output=True, text=True, check=False, timeout=_TIME_LIMIT_S
        )
        if done.returncode != 0:
            raise BundleError(f"pip cannot resolve {', '.join(requirements)}:\n{done.stderr.strip()}")
        chosen = json.loads(report.read_text(encoding="utf-8"))["install"]
    return {
        entry["metadata"]["name"].lower().replace("_", "-"): (
            entry["metadata"]["version"],
            entry["download_info"]["archive_info"]["hashes"]["sha256"],
        )
        for entry in chosen
    }


if __name__ == "__main__":
    sys.exit(main())
