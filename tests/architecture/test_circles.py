"""Sees that neither files nor folders import one another in a circle, not even lazily or for types."""

from graphlib import CycleError, TopologicalSorter
from pathlib import Path, PurePosixPath

from tests.architecture.import_scan import imports_of
from tests.architecture.test_imports import PACKAGES, in_tree

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (*PACKAGES, "benchmarks", "infra", "tools")


def sources():
    """The text of each file by its path below the root; links are not followed."""
    files = (file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py"))
    return {
        file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8")
        for file in files
        if not file.stem.endswith(("_pb2", "_pb2_grpc"))
    }


def file_imports(texts):
    """Which of these files each imports."""
    modules = {path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): path for path in texts}
    found = {}
    for path, text in texts.items():
        package = ".".join(PurePosixPath(path).parent.parts)
        installed = (
            package if package.partition(".")[0] in ("superdl", *FOLDERS[-3:]) else f"superdl.{package}"
        )
        for item in imports_of(text, installed):
            parts = in_tree(item.name).split(".")
            names = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
            target = next((modules[name] for name in names if name in modules), path)
            if target != path:
                found.setdefault(path, set()).add(target)
    return found


def folder_imports(files):
    """Which folders the files of each folder import from, itself left out."""
    found = {}
    for path, targets in files.items():
        folder = PurePosixPath(path).parent.as_posix()
        found.setdefault(folder, set()).update(PurePosixPath(target).parent.as_posix() for target in targets)
    return {folder: targets - {folder} for folder, targets in found.items()}


def circle(graph):
    """One circle of the graph, its first at the end again; empty if it has none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_no_files_import_one_another_in_a_circle():
    assert not circle(file_imports(sources()))


def test_no_folders_import_one_another_in_a_circle():
    assert not circle(folder_imports(file_imports(sources())))


def test_a_circle_is_found():
    lazy = {"sampler/a.py": "from .b import x", "sampler/b.py": "def f():\n    from . import a"}
    assert circle(file_imports(lazy))
    of_types = {
        "sampler/a.py": "from superdl.sampler.rpc import b",
        "sampler/rpc/b.py": "if TYPE_CHECKING:\n    from ..c import x",
        "sampler/c.py": "",
    }
    assert not circle(file_imports(of_types))
    assert circle(folder_imports(file_imports(of_types)))
