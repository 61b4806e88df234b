"""Says which files the function's package holds: our two packages, the pinned wheels, and a name and version.

Left out of the wheels, since no import reaches it (a test imports all that the handler does from a bundle):
their tests (8 MB of numpy), type stubs, headers and static libraries, scripts, and pip's own records. Nothing
that can be imported is stripped or compiled. Left out of ours: the gRPC stubs, which the function has no use
for. boto3 is not bundled, for Lambda's runtime has it.
"""

from __future__ import annotations

import tomllib
import zipfile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from tools.lambda_zip.wheels import BundleError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["ROOT", "bundle_files", "check_sizes", "own_files", "project_version", "wheel_files"]

ROOT = Path(__file__).resolve().parents[2]

MAX_ZIPPED_BYTES = 30_000_000
MAX_UNZIPPED_BYTES = 250_000_000  # Lambda's bound on a zip

# Installed below superdl, whose own __init__.py imports nothing until it is asked for a name.
_OURS = ("superdl/__init__.py", "superdl/lambda_prefetch", "superdl/super_wire")
_NOT_OURS = frozenset({"superdl/super_wire/coordinator_pb2.py", "superdl/super_wire/coordinator_pb2_grpc.py"})
_NEEDLESS_SUFFIXES = frozenset({".pyc", ".pyi", ".pxd", ".h", ".a", ".c", ".lib"})
_INSTALLERS_RECORDS = frozenset({"RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "entry_points.txt"})
_IN_LAMBDAS_RUNTIME = frozenset({"boto3", "botocore", "s3transfer", "awslambdaric"})


def bundle_files(wheels: Iterable[Path], *, modules: Iterable[Path] = ()) -> dict[str, bytes]:
    """All files of the package, by their names in it.

    Args:
        wheels: the wheels to unpack.
        modules: packages (folders) or modules (files) of custom steps to be deployed with the function.

    Raises:
        BundleError: a file would be there twice, or something is no module or must not be bundled.
    """
    files = own_files()
    for wheel in wheels:
        _add(files, wheel_files(wheel), wheel.name)
    for module in modules:
        _add(files, _module_files(module), str(module))
    return files


def check_sizes(files: dict[str, bytes], zipped_bytes: int) -> None:
    """Raise :class:`BundleError` if the package is larger than we allow, or than Lambda does."""
    unzipped_bytes = sum(map(len, files.values()))
    for what, size, most in (
        ("zipped", zipped_bytes, MAX_ZIPPED_BYTES),
        ("unzipped", unzipped_bytes, MAX_UNZIPPED_BYTES),
    ):
        if size >= most:
            largest = sorted(files, key=lambda name: -len(files[name]))[:5]
            raise BundleError(
                f"the package has {size / 1e6:.1f} MB {what}, the limit is {most / 1e6:.0f} MB; "
                f"the largest files are {', '.join(largest)}"
            )


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
            name = path.relative_to(ROOT).as_posix()
            if name not in _NOT_OURS:
                files[name] = path.read_bytes()
    return files


def wheel_files(wheel: Path) -> Iterator[tuple[str, bytes]]:
    """What is needed of a wheel, by its place in ``sys.path``.

    Raises:
        BundleError: Lambda's runtime has this distribution, and another one would hide it.
    """
    distribution = wheel.name.partition("-")[0].lower()
    if distribution in _IN_LAMBDAS_RUNTIME:
        raise BundleError(
            f"{distribution} must not be in the package: Lambda's runtime has it; take it out of the "
            "requirements"
        )
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
        kind = path.parts[1]
        if kind not in {"purelib", "platlib"}:
            return None
        path = PurePosixPath(*path.parts[2:])
    if top.endswith(".dist-info"):
        return None if path.name in _INSTALLERS_RECORDS else str(path)
    if path.suffix in _NEEDLESS_SUFFIXES or "tests" in path.parts[:-1]:
        return None
    return str(path)


def _module_files(module: Path) -> Iterator[tuple[str, bytes]]:
    if module.is_file() and module.suffix == ".py":
        yield module.name, module.read_bytes()
        return
    if not (module / "__init__.py").is_file():
        raise BundleError(f"{module} is neither a .py file nor a package with an __init__.py")
    for path in module.rglob("*"):
        if path.is_file() and path.suffix != ".pyc":
            yield f"{module.name}/{path.relative_to(module).as_posix()}", path.read_bytes()


def _add(files: dict[str, bytes], more: Iterable[tuple[str, bytes]], origin: str) -> None:
    for name, content in more:
        if name in files:
            raise BundleError(f"{origin} brings {name}, which is there already")
        files[name] = content
