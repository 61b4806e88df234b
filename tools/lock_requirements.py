"""Pin the packages on Lambda and in containers to exact versions and file hashes.

``make lock`` runs this program. pyproject.toml lists the files and their packages (``tool.superdl.locks``).
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).resolve().parent.parent
# Use one version of a package for every Python, so that functions decode identically everywhere.
_RESOLVE = ("--universal", "--python-version", "3.11", "--fork-strategy", "fewest", "--upgrade", "--quiet")
_WRITE = ("--only-binary", ":all:", "--generate-hashes", "--custom-compile-command", "make lock")


def main() -> int:
    """Write all lock files. Return the exit code."""
    for file, requirements in locks().items():
        command = ["uv", "pip", "compile", *_RESOLVE, *_WRITE, "--output-file", file, "-"]
        text = "\n".join(requirements.values())
        if code := subprocess.run(command, input=text, text=True, check=False, cwd=ROOT).returncode:
            return code
        print(file)
    return 0


def locks() -> dict[str, dict[str, str]]:
    """Return the packages in each file, with the versions that pyproject.toml allows."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    dependencies = _by_name(pyproject["project"]["dependencies"])
    allowed = _by_name(chain(*pyproject["project"]["optional-dependencies"].values())) | dependencies
    packages_by_file = {}
    for file, lock in pyproject["tool"]["superdl"]["locks"].items():
        names = set(lock["packages"])
        if "dependencies-but" in lock:
            names |= dependencies.keys() - lock["dependencies-but"]
        packages_by_file[file] = {name: allowed[name] for name in sorted(names)}
    return packages_by_file


def _by_name(requirements: Iterable[str]) -> dict[str, str]:
    return {re.split(r"[^A-Za-z0-9._-]", text, maxsplit=1)[0]: text for text in requirements}


if __name__ == "__main__":
    sys.exit(main())
