"""``python -m tools.lambda_zip``: builds ``dist/super-prefetch-<architecture>.zip`` and tells sizes and
digests; with ``--unpacked`` it lays the same files out in a folder, for an image of the function.

Exit codes: 0 built, 1 it cannot be built; the reason is on stderr.
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from tools.lambda_zip.archive import write_archive
from tools.lambda_zip.bundle import ROOT, bundle_files, check_sizes, project_version
from tools.lambda_zip.wheels import LAMBDA_PYTHON, MACHINES, BundleError, Target, download

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["build", "main", "unpack"]

REQUIREMENTS = ROOT / "infra" / "function" / "requirements.txt"


def build(path: Path, target: Target, modules: Sequence[Path] = ()) -> str:
    """Build the package for a target at ``path`` and return its SHA-256.

    Raises:
        BundleError: it cannot be built, or is too large.
    """
    files = _files(target, modules)
    digest = write_archive(path, files)
    check_sizes(files, path.stat().st_size)
    return digest


def unpack(folder: Path, modules: Sequence[Path] = ()) -> None:
    """Lay the package's files out in ``folder``, for the Python and the machine that run this.

    Raises:
        BundleError: the wheels cannot be had.
    """
    target = Target(f"{sys.version_info.major}.{sys.version_info.minor}", platform.machine())
    for name, content in _files(target, modules).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _files(target: Target, modules: Sequence[Path]) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        return bundle_files(download(REQUIREMENTS, target, Path(folder)), modules=modules)


def main(argv: Sequence[str] | None = None) -> int:
    """Build what the arguments name; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.lambda_zip", description="Build the function's package for AWS Lambda."
    )
    parser.add_argument("--arch", action="append", choices=list(MACHINES), help="default: both")
    parser.add_argument(
        "--unpacked", type=Path, metavar="FOLDER", help="no zips: the files, for this Python and machine"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder for the zips (dist)")
    parser.add_argument(
        "--module",
        type=Path,
        action="append",
        default=[],
        help="a package or module of custom steps to deploy with the function; may be repeated",
    )
    arguments = parser.parse_args(argv)
    try:
        if arguments.unpacked:
            unpack(arguments.unpacked, arguments.module)
            return 0
        for arch in arguments.arch or MACHINES:
            path = arguments.out / f"super-prefetch-{arch}.zip"
            digest = build(path, Target(LAMBDA_PYTHON, MACHINES[arch]), arguments.module)
            print(f"{digest}  {path}  {path.stat().st_size / 1e6:.1f} MB")
    except BundleError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"SUPER {project_version()} for Lambda's python{LAMBDA_PYTHON}, compressed by zlib {_zlib()}")
    return 0


def _zlib() -> str:
    return zlib.ZLIB_RUNTIME_VERSION


if __name__ == "__main__":
    sys.exit(main())
