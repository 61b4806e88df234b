"""Nothing that comes over a network becomes code: no unpickling, no evaluation, no module by its name."""

import ast
from pathlib import Path

import pytest

from tests.architecture.import_scan import imports_of
from tests.architecture.test_imports import PACKAGES, ROOT, within

# What makes objects or code out of bytes.
MODULES = frozenset(
    {
        *(
            "pickle",
            "_pickle",
            "cPickle",
            "pickletools",
            "marshal",
            "shelve",
            "dill",
            "cloudpickle",
            "joblib",
        ),
        *("jsonpickle", "runpy", "code", "codeop", "xmlrpc"),
        *(f"multiprocessing.{name}" for name in ("connection", "managers", "reduction")),
        *("torch.load", "torch.jit.load", "torch.package", "numpy.load"),
        *(f"yaml.{name}" for name in ("load", "unsafe_load", "full_load")),
        *(f"yaml.{name}" for name in ("Loader", "UnsafeLoader", "FullLoader")),
    }
)
BUILTINS = frozenset({"eval", "exec", "compile", "__import__"})
ATTRIBUTES = frozenset(
    {"yaml.load", "yaml.unsafe_load", "yaml.full_load", "yaml.load_all", "os.system", "os.popen"}
)

# (file, what): why it may.
ALLOWED = {
    (
        "super_dataset/memory/handover.py",
        "multiprocessing.reduction",
    ): "tells how a tensor goes from a DataLoader worker to its own parent, by torch's own queues",
    (
        "lambda_prefetch/worker/slot.py",
        "import_module",
    ): "the function that the worker's operator has named",
    ("coordinator/executors/base.py", "import_module"): "the class that the registry's row names",
    (
        "lambda_prefetch/custom_steps.py",
        "import_module",
    ): "a custom step, only out of the modules that the function's operator lists in SUPER_STEP_MODULES",
    ("superdl/main.py", "import_module"): "one of a fixed table of subcommands",
    ("superdl/__init__.py", "import_module"): "one of a fixed table of names",
}


def violations(path, source):
    """What a file does that makes code or objects out of bytes, with its line."""
    found = []
    package = ".".join(Path(path).parent.parts)
    for item in imports_of(source, package):
        modules = [module for module in sorted(MODULES) if within(item.name, frozenset({module}))]
        found += [(item.line, module, f"imports {item.name}") for module in modules]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            found += [(node.lineno, what, f"calls {what}") for what in _bad_call(node)]
    return [f"{path}:{line}: {said}" for line, what, said in sorted(found) if (path, what) not in ALLOWED]


def _bad_call(node):
    name, words = ast.unparse(node.func), {word.arg: word.value for word in node.keywords}
    last = name.rpartition(".")[2]
    bad = []
    if name in BUILTINS or name.removeprefix("builtins.") in BUILTINS or name in ATTRIBUTES:
        bad.append(name)
    if last == "import_module" and not (node.args and isinstance(node.args[0], ast.Constant)):
        bad.append("import_module")
    if name in {"torch.load", "torch.jit.load"} and not _is(words.get("weights_only"), value=True):
        bad.append(f"{name} without weights_only=True")
    if not _is(words.get("allow_pickle", ast.Constant(False)), value=False):
        bad.append("allow_pickle")
    if not _is(words.get("shell", ast.Constant(False)), value=False):
        bad.append("a shell")
    return bad


def _is(node, *, value):
    return isinstance(node, ast.Constant) and node.value is value


def files():
    """All files of the packages."""
    paths = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in sorted(paths)}


def test_no_package_makes_code_or_objects_out_of_bytes():
    found = [line for path, source in files().items() for line in violations(path, source)]
    assert not found, "\n".join(found)


def test_what_is_allowed_is_needed():
    sources = files()
    for path, what in ALLOWED:
        assert any(what.rpartition(".")[2] in line for line in sources[path].splitlines()), (path, what)


@pytest.mark.parametrize(
    ("source", "is_bad"),
    [
        ("def f():\n    from pickle import loads", True),
        ("import multiprocessing.reduction", True),
        ("from torch import load", True),
        ("import numpy\nnumpy.load('x', allow_pickle=flag)", True),
        ("torch.load('x')", True),
        ("torch.load('x', weights_only=False)", True),
        ("import builtins\nbuiltins.exec(text)", True),
        ("from importlib import import_module\nimport_module(name)", True),
        ("yaml.load(text)", True),
        ("subprocess.run(words, shell=True)", True),
        ("os.system(text)", True),
        ("torch.load('x', weights_only=True)", False),
        ("model.eval()", False),
        ("import_module('a.b')", False),
    ],
)
def test_what_is_forbidden_is_found(source, is_bad):
    assert bool(violations("coordinator/x.py", source)) == is_bad
