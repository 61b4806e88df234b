"""Brings the wheels that a requirements file pins, by pip, for a Python and a machine that need not be ours.

pip checks every wheel against the hashes in the file. What is in the bundle of all that, and what is left
out, is :mod:`tools.lambda_zip.bundle`'s.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["LAMBDA_PYTHON", "MACHINES", "BundleError", "Target", "download"]

LAMBDA_PYTHON = "3.13"
"""Lambda's runtime ``python3.13``: Amazon Linux 2023, glibc 2.34, supported until 2029; all our wheels exist.
"""

MACHINES = {"arm64": "aarch64", "x86_64": "x86_64"}
"""Lambda's names of its architectures, and what wheels call them."""

_GLIBC_MINORS = (17, 24, 26, 27, 28, 31, 34)  # those that wheels are built for, up to Lambda's own
_TIME_LIMIT_S = 300.0


class BundleError(Exception):
    """The package cannot be built; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Target:
    """A Python, such as ``3.13``, and a machine as wheels name it, such as ``aarch64``."""

    python: str
    machine: str

    def pip_options(self) -> list[str]:
        """The words that make pip look for this target's wheels, and for wheels only."""
        tag = f"cp{self.python.replace('.', '')}"
        options = ["--only-binary", ":all:", "--python-version", self.python, "--implementation", "cp"]
        for abi in (tag, "abi3", "none"):
            options += ["--abi", abi]
        for platform in (f"manylinux2014_{self.machine}", *self._manylinux()):
            options += ["--platform", platform]
        return options

    def _manylinux(self) -> list[str]:
        return [f"manylinux_2_{minor}_{self.machine}" for minor in _GLIBC_MINORS]


def download(requirements: Path, target: Target, folder: Path) -> list[Path]:
    """Put the wheels into an empty ``folder``; returns their paths, sorted.

    Raises:
        BundleError: pip cannot, for want of a network, a wheel or a right hash.
    """
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
    command += ["--no-input", "--retries", "2", "--dest", str(folder)]
    command += [*target.pip_options(), "--requirement", str(requirements)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIME_LIMIT_S)
    except subprocess.TimeoutExpired as error:
        raise BundleError(f"pip took longer than {_TIME_LIMIT_S:.0f} s to bring the wheels") from error
    if done.returncode != 0:
        why = [line for line in done.stderr.strip().splitlines() if not line.startswith("WARNING:")]
        raise BundleError(
            f"pip cannot bring the wheels of {requirements.name} for Python {target.python} on "
            f"{target.machine}; it needs the network or an index of its own (see pip's configuration), and "
            "`make lock` renews the file. It says:\n" + "\n".join(why[-12:])
        )
    return sorted(folder.glob("*.whl"))
