"""``python -m tools.lambda_zip``: builds ``dist/super-prefetch-<architecture>.zip`` without docker, and
prints sizes and digests; with ``--unpacked`` it lays the same files out in a folder, for an image of the
function.

pip brings the wheels that ``infra/function/requirements.txt`` pins, for a Python and a machine that need not
be ours, and checks each against its hash. What no import reaches is left out of wheels: tests, type stubs,
headers, scripts. boto3 is Lambda's own. The zip's bytes depend on the files' names and contents, and on zlib.

Exit codes: 0 built, 1 it cannot be built; the reason is on stderr.
"""

from __future__ import annotations

import argparse
import hashlib
import platform
import subprocess
import sys
import tempfile
import tomllib
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

__all__ = [
    "LAMBDA_PYTHON",
    "MACHINES",
    "ROOT",
    "BundleError",
    "Platform",
    "build",
    "bundle_files",
    "download",
    "main",
    "own_files",
    "project_version",
    "write_archive",
]

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "infra" / "function" / "requirements.txt"

LAMBDA_PYTHON = "3.13"
"""Lambda's runtime ``python3.13``: Amazon Linux 2023, glibc 2.34, supported until 2029; all wheels exist."""

MACHINES = {"arm64": "aarch64", "x86_64": "x86_64"}
"""Lambda's names of its architectures, and what wheels call them."""

_GLIBC_MINORS = (17, 24, 26, 27, 28, 31, 34)  # those that wheels are built for, up to Lambda's own
_TIME_LIMIT_S = 300.0

# Installed below superdl, whose own __init__.py imports nothing until it is asked for a name.
_OURS = ("superdl/__init__.py", "superdl/lambda_prefetch", "superdl/super_wire")
_NEEDLESS_SUFFIXES = frozenset({".pyc", ".pyi", ".pxd", ".h", ".a", ".c", ".lib"})
_INSTALLERS_RECORDS = frozenset({"RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "entry_points.txt"})
_TIME = (1980, 1, 1, 0, 0, 0)  # the earliest that the format can say
_UNIX = 3
_MODE = 0o100644 << 16  # an ordinary file that all may read; libraries need no more to be loaded
_LEVEL = 9


class BundleError(Exception):
    """The package cannot be built; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Platform:
    """A Python, such as ``3.13``, and a machine as wheels name it, such as ``aarch64``."""

    python: str
    machine: str

    def pip_options(self) -> list[str]:
        """The words that make pip look for this target's wheels, and for wheels only."""
        tag = f"cp{self.python.replace('.', '')}"
        options = ["--only-binary", ":all:", "--python-version", self.python, "--implementation", "cp"]
        for abi in (tag, "abi3", "none"):
            options += ["--abi", abi]
        for glibc in ("2014", *(f"_2_{minor}" for minor in _GLIBC_MINORS)):
            options += ["--platform", f"manylinux{glibc}_{self.machine}"]
        return options


def download(requirements: Sequence[Path], target: Platform, folder: Path) -> list[Path]:
    """Put the wheels of these files into an empty ``folder``; returns their paths, sorted.

    Raises:
        BundleError: pip cannot, for want of a network, a wheel or a right hash.
    """
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
    command += ["--no-input", "--retries", "2", "--dest", str(folder)]
    command += target.pip_options()
    for file in requirements:
        command += ["--requirement", str(file)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIME_LIMIT_S)
    except subprocess.TimeoutExpired as error:
        raise BundleError(f"pip took longer than {_TIME_LIMIT_S:.0f} s to bring the wheels") from error
    if done.returncode != 0:
        why = [line for line in done.stderr.strip().splitlines() if not line.startswith("WARNING:")]
        raise BundleError(
            f"pip cannot bring the wheels of {', '.join(file.name for file in requirements)} for Python "
            f"{target.python} on "
            f"{target.machine}; it needs the network or an index of its own (see pip's configuration), and "
            "`make lock` renews the file. It says:\n" + "\n".join(why[-12:])
        )
    return sorted(folder.glob("*.whl"))


def bundle_files(wheels: Iterable[Path], *, modules: Iterable[Path] = ()) -> dict[str, bytes]:
    """All files of the package, by their names in it.

    Args:
        wheels: the wheels to unpack.
        modules: packages (folders) or modules (files) of custom steps to be deployed with the function.

    Raises:
        BundleError: a file would be there twice, or something is no module or must not be bundled.
    """
    files = own_files()
    sources = [(wheel.name, wheel_files(wheel)) for wheel in wheels]
    sources += [(str(module), _module_files(module)) for module in modules]
    for origin, more in sources:
        for name, content in more:
            if name in files:
                raise BundleError(f"{origin} brings {name}, which is there already")
            files[name] = content
    return files


def project_version() -> str:
    """SUPER's version, as pyproject.toml says it."""
    version: str = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    return version


def own_files() -> dict[str, bytes]:
    """Our packages, the licence, and the metadata that the function tells its version by."""
    version = project_version()
    info = f"superdl-{version}.dist-info"
    metadata = f"Metadata-Version: 2.4\nName: superdl\nVersion: {version}\nLicense-Expression: Apache-2.0\n"
    files = {
        f"{info}/METADATA": metadata.encode(),
        f"{info}/licenses/LICENSE": (ROOT / "LICENSE").read_bytes(),
    }
    for ours in _OURS:
        place = ROOT / ours
        for path in [place] if place.is_file() else place.rglob("*.py"):
            if "pb2" not in path.name:  # the gRPC stubs
                files[path.relative_to(ROOT).as_posix()] = path.read_bytes()
    return files


def wheel_files(wheel: Path) -> Iterator[tuple[str, bytes]]:
    """What is needed of a wheel, by its place in ``sys.path``."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            placed = _placed(name)
            if placed is not None and not name.endswith("/"):
                yield placed, archive.read(name)


def _placed(name: str) -> str | None:
    """Where a wheel's file goes in the package; ``None`` for what is left out."""
    path = PurePosixPath(name)
    top = path.parts[0]
    if top.endswith(".data"):  # parts of the wheel that belong elsewhere than its root
        if path.parts[1] not in {"purelib", "platlib"}:
            return None
        path = PurePosixPath(*path.parts[2:])
    if top.endswith(".dist-info"):
        return None if path.name in _INSTALLERS_RECORDS else str(path)
    needless = path.suffix in _NEEDLESS_SUFFIXES or "tests" in path.parts[:-1]
    return None if needless else str(path)


def _module_files(module: Path) -> Iterator[tuple[str, bytes]]:
    if module.is_file() and module.suffix == ".py":
        yield module.name, module.read_bytes()
        return
    if not (module / "__init__.py").is_file():
        raise BundleError(f"{module} is neither a .py file nor a package with an __init__.py")
    for path in module.rglob("*"):
        if path.is_file() and path.suffix != ".pyc":
            yield f"{module.name}/{path.relative_to(module).as_posix()}", path.read_bytes()


def write_archive(path: Path, files: Mapping[str, bytes]) -> str:
    """Write ``files``, by their names in the zip, and return the SHA-256 of the zip in hex digits.

    The zip appears at ``path`` whole or not at all.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.unfinished")
    with zipfile.ZipFile(unfinished, "w") as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, date_time=_TIME)
            entry.create_system = _UNIX
            entry.external_attr = _MODE
            archive.writestr(entry, files[name], compress_type=zipfile.ZIP_DEFLATED, compresslevel=_LEVEL)
    unfinished.replace(path)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def build(
    path: Path, target: Platform, modules: Sequence[Path] = (), requirements: Sequence[Path] = ()
) -> str:
    """Build the package for a target at ``path`` and return its SHA-256.

    ``requirements`` are files beside SUPER's own, of packages that its extras or custom steps need.

    Raises:
        BundleError: it cannot be built.
    """
    return write_archive(path, _files(target, modules, requirements))


def _files(target: Platform, modules: Sequence[Path], requirements: Sequence[Path]) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        wheels = download([REQUIREMENTS, *requirements], target, Path(folder))
        return bundle_files(wheels, modules=modules)


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
    parser.add_argument(
        "--requirements",
        type=Path,
        action="append",
        default=[],
        help="a file of further packages, each with version and hash, as for an extra; may be repeated",
    )
    arguments = parser.parse_args(argv)
    try:
        if arguments.unpacked:
            here = Platform(f"{sys.version_info.major}.{sys.version_info.minor}", platform.machine())
            for name, content in _files(here, arguments.module, arguments.requirements).items():
                path = arguments.unpacked / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            return 0
        for arch in arguments.arch or MACHINES:
            path = arguments.out / f"super-prefetch-{arch}.zip"
            target = Platform(LAMBDA_PYTHON, MACHINES[arch])
            digest = build(path, target, arguments.module, arguments.requirements)
            print(f"{digest}  {path}  {path.stat().st_size / 1e6:.1f} MB")
    except BundleError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(
        f"SUPER {project_version()} for python{LAMBDA_PYTHON}, compressed by zlib {zlib.ZLIB_RUNTIME_VERSION}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
