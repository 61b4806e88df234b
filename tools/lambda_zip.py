"""``python -m tools.lambda_zip``: build ``dist/super-prefetch-<architecture>.zip`` without docker.

With ``--unpacked``, it writes the files to a folder instead, for an image. Exit codes: 0 success,
1 failure.
"""

from __future__ import annotations

import argparse
import hashlib
import platform
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "infra" / "function" / "requirements.txt"

LAMBDA_PYTHON = "3.13"  # Amazon Linux 2023, glibc 2.34, supported until 2029; all wheels exist
MACHINES = {"arm64": "aarch64", "x86_64": "x86_64"}  # architectures in Lambda -> in wheel names

_GLIBC_MINORS = (17, 24, 26, 27, 28, 31, 34)  # versions that wheels are built for, up to that of Lambda
_TIME_LIMIT_S = 300.0

# Installed below superdl, whose __init__.py imports lazily.
_OURS = ("superdl/__init__.py", "superdl/lambda_prefetch", "superdl/super_wire")
_STUBS = ("coordinator.proto", "coordinator_pb2*")  # of gRPC, which the function does not use
# Files that are never imported, and pip's records of a wheel's origin, which would change the zip's bytes.
_NEEDLESS = [
    *("bin", "include", "share", "**/tests"),
    *(f"**/*.{suffix}" for suffix in ("pyc", "pyi", "pxd", "h", "a", "c", "lib")),
    *(f"*.dist-info/{name}" for name in ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json")),
    "*.dist-info/entry_points.txt",
]

_TIME = (1980, 1, 1, 0, 0, 0)  # the earliest time in the format
_UNIX = 3
_MODE = 0o100644 << 16  # a plain file readable by all, which is enough to load a library
_LEVEL = 9


class BundleError(Exception):
    """The package cannot be built. The message contains the reason and the remedy."""


class Platform(NamedTuple):
    """A Python version such as ``3.13``, and a machine as wheels name it, such as ``aarch64``."""

    python: str
    machine: str

    def pip_options(self) -> list[str]:
        """Return the options that make pip select only wheels for this target."""
        options = ["--only-binary", ":all:", "--python-version", self.python, "--implementation", "cp"]
        for abi in (f"cp{self.python.replace('.', '')}", "abi3", "none"):
            options += ["--abi", abi]
        for glibc in ("2014", *(f"_2_{minor}" for minor in _GLIBC_MINORS)):
            options += ["--platform", f"manylinux{glibc}_{self.machine}"]
        return options


def lay_out(
    folder: Path, target: Platform, modules: Sequence[Path] = (), requirements: Sequence[Path] = ()
) -> None:
    """Write all files of the package to an empty ``folder``.

    ``modules`` are packages (folders) or modules (files) with custom steps. ``requirements`` are
    additional requirements files, for extras or custom steps.
    """
    if any(folder.glob("*")):
        raise BundleError(f"{folder} is not empty: use a new folder")
    _install([REQUIREMENTS, *requirements], target, folder)
    for pattern in _NEEDLESS:
        for path in list(folder.glob(pattern)):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)  # it may have been removed with its folder
    version = project_version()
    info = folder / f"superdl-{version}.dist-info"  # from which the function reads the version
    for name in _OURS:
        _copy(ROOT / name, folder / name, *_STUBS)
    _copy(ROOT / "LICENSE", info / "licenses" / "LICENSE")
    metadata = f"Metadata-Version: 2.4\nName: superdl\nVersion: {version}\nLicense-Expression: Apache-2.0\n"
    (info / "METADATA").write_text(metadata, encoding="ascii")
    for module in modules:
        if not (module.is_file() and module.suffix == ".py") and not (module / "__init__.py").is_file():
            raise BundleError(f"{module} is neither a .py file nor a package with an __init__.py")
        _copy(module, folder / module.name)


def _install(requirements: Sequence[Path], target: Platform, folder: Path) -> None:
    # The target Python and machine may differ from this one. pip checks each wheel's hash.
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes"]
    command += ["--no-input", "--no-compile", "--retries", "2", "--target", str(folder)]
    command += target.pip_options()
    for file in requirements:
        command += ["--requirement", str(file)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIME_LIMIT_S)
    except subprocess.TimeoutExpired as error:
        raise BundleError(f"pip took longer than {_TIME_LIMIT_S:.0f} s to download the wheels") from error
    if done.returncode != 0:
        why = [line for line in done.stderr.strip().splitlines() if not line.startswith("WARNING:")]
        raise BundleError(
            f"pip could not download the wheels in {', '.join(file.name for file in requirements)} for "
            f"Python {target.python} on {target.machine}. It needs network access or a local index (see "
            "pip's configuration); `make lock` updates the file. Output of pip:\n" + "\n".join(why[-12:])
        )


def _copy(origin: Path, place: Path, *but: str) -> None:
    if place.exists():
        raise BundleError(f"{origin} cannot be deployed as {place.name}: a wheel already contains that name")
    place.parent.mkdir(parents=True, exist_ok=True)
    if origin.is_dir():
        shutil.copytree(origin, place, ignore=shutil.ignore_patterns("__pycache__", *but))
    else:
        shutil.copyfile(origin, place)


def project_version() -> str:
    """Return SUPER's version from pyproject.toml."""
    version: str = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    return version


def write_archive(path: Path, folder: Path) -> str:
    """Write the files of ``folder`` to a zip, completely or not at all. Return its SHA-256 in hex."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.unfinished")
    # A fixed order, time and mode make the zip reproducible.
    with zipfile.ZipFile(unfinished, "w") as archive:
        for file in sorted(file for file in folder.rglob("*") if file.is_file()):
            entry = zipfile.ZipInfo(file.relative_to(folder).as_posix(), date_time=_TIME)
            entry.create_system = _UNIX
            entry.external_attr = _MODE
            archive.writestr(entry, file.read_bytes(), zipfile.ZIP_DEFLATED, _LEVEL)
    unfinished.replace(path)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main(argv: Sequence[str] | None = None) -> int:
    """Build the package as requested. Return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.lambda_zip", description="Build the function's package for AWS Lambda."
    )
    add = parser.add_argument
    add("--arch", action="append", choices=list(MACHINES), help="default: both")
    words = "write the files for this Python and machine to FOLDER instead of zips"
    add("--unpacked", type=Path, metavar="FOLDER", help=words)
    add("--out", type=Path, default=ROOT / "dist", help="folder for the zips (default: dist)")
    words = "a package or module with custom steps to deploy with the function; may be repeated"
    add("--module", type=Path, action="append", default=[], help=words)
    words = "a file of additional packages with versions and hashes, as for an extra; may be repeated"
    add("--requirements", type=Path, action="append", default=[], help=words)
    arguments = parser.parse_args(argv)
    additions = (arguments.module, arguments.requirements)
    try:
        if arguments.unpacked:
            here = Platform(f"{sys.version_info.major}.{sys.version_info.minor}", platform.machine())
            lay_out(arguments.unpacked, here, *additions)
            return 0
        for arch in arguments.arch or MACHINES:
            path = arguments.out / f"super-prefetch-{arch}.zip"
            with tempfile.TemporaryDirectory() as folder:
                lay_out(Path(folder), Platform(LAMBDA_PYTHON, MACHINES[arch]), *additions)
                digest = write_archive(path, Path(folder))
            print(f"{digest}  {path}  {path.stat().st_size / 1e6:.1f} MB")
    except BundleError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(
        f"SUPER {project_version()} for python{LAMBDA_PYTHON}, "
        f"compressed with zlib {zlib.ZLIB_RUNTIME_VERSION}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
