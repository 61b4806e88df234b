"""Sees that files stay short, say what they do and show their public names, and that none is a drawer."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAX_LINES = 400
DRAWERS = {"common", "helper", "helpers", "misc", "shared", "util", "utils"}
GENERATED = {"super_wire/coordinator_pb2.py", "super_wire/coordinator_pb2_grpc.py"}
PACKAGES = [
    "super_wire",
    "coordinator",
    "lambda_prefetch",
    "super_dataset",
    "sampler",
    "superdl",
    "experiments",
]
FOLDERS = [*PACKAGES, "benchmarks", "docs", "examples", "infra", "tests", "tools"]

FILES = {
    path.relative_to(ROOT).as_posix(): path
    for folder in FOLDERS
    for path in sorted((ROOT / folder).rglob("*.py"))
    if path.relative_to(ROOT).as_posix() not in GENERATED
}


def faults(name, source):
    """What is wrong with the shape of one file; ``name`` is its path below the root."""
    found = []
    lines = source.count("\n")
    if lines >= MAX_LINES:
        found.append(f"{lines} lines: split it by ideas (the limit is {MAX_LINES})")
    module = ast.parse(source)
    if not ast.get_docstring(module):
        found.append("opens without saying what it does and what it leaves to others")
    path = Path(name)
    if path.name == "__init__.py" and path.parts[0] in PACKAGES and not _has_public_names(module):
        found.append("has no __all__")
    drawers = {Path(part).stem.lower() for part in path.parts} & DRAWERS
    found += [f"{drawer}: name it by the idea it holds" for drawer in sorted(drawers)]
    return found


def _has_public_names(module):
    targets = [
        target
        for node in module.body
        for target in (node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)])
    ]
    return any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets)


def test_files_are_in_shape():
    found = {name: faults(name, path.read_text(encoding="utf-8")) for name, path in FILES.items()}
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize("package", PACKAGES)
def test_package_is_installed_below_superdl(package):
    assert (ROOT / package / "__init__.py").is_file()
    installed = ROOT / "superdl" / ("" if package == "superdl" else package)
    assert installed.resolve() == ROOT / package, "superdl/ needs a link to it"


def test_no_python_outside_the_known_folders():
    strangers = {
        path.relative_to(ROOT).parts[0]
        for pattern in ("*.py", "[!.]*/**/*.py")
        for path in ROOT.glob(pattern)
    } - set(FOLDERS)
    assert strangers <= {"build", "dist"}, "tell DESIGN's folder table, pyproject.toml and this test about it"
