"""The changes in examples/ have at most ten lines each, and call what superdl has.

The scripts are not here. Where ``SUPER_EXAMPLES`` names a folder with ``OWNER/REPOSITORY`` in it, checked out
at the commits that the changes name, they are changed too.
"""

import ast
import difflib
import inspect
import os
import re
import subprocess
from pathlib import Path

import pytest

import superdl

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
CHANGES = sorted(EXAMPLES.glob("*.sed"))
MAX_LINES = 10
SCRIPT = re.compile(r"# https://github\.com/([\w.-]+/[\w.-]+)/blob/[0-9a-f]{40}/(\S+\.py)")
MARK = "superdl_value"

pytestmark = pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.stem)


def written(change):
    """The lines that a change writes into its script: texts of a, i and c, and what an s makes of a line."""
    lines, found = iter(change.read_text(encoding="utf-8").splitlines()), []
    for line in lines:
        if re.search(r"[aic]\\$", line) and not line.startswith("s/"):
            text = next(lines)
            while text.endswith("\\"):
                found.append(text[:-1])
                text = next(lines)
            found.append(text)
        elif line.startswith("s/"):
            found.append(re.split(r"(?<!\\)/", line)[2])
    return found


def calls(text, names):
    """Each call of one of ``names``, or of a method of it."""
    # An argument that the script's next line gives.
    text = re.sub(r"=$", f"={MARK})", text, flags=re.MULTILINE)
    found = []
    for start in re.finditer(rf"\b({'|'.join(names)})(\.\w+)?\(", text):
        depth, end = 1, start.end()
        while depth:
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        call = ast.parse(text[start.start() : end], mode="eval").body
        assert isinstance(call, ast.Call)
        found.append(call)
    return found


def called(call):
    if isinstance(call.func, ast.Attribute):
        assert isinstance(call.func.value, ast.Name)
        return getattr(getattr(superdl, call.func.value.id), call.func.attr)
    assert isinstance(call.func, ast.Name)
    return getattr(superdl, call.func.id)


def test_it_writes_as_many_lines_as_the_page_says(change):
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    (said,) = re.findall(rf"\({change.name}\) \| (\d+)\n", page)
    assert len(written(change)) == int(said) <= MAX_LINES


def test_sed_takes_it(change):
    done = subprocess.run(["sed", "-f", change, os.devnull], capture_output=True, text=True, check=False)  # noqa: S607
    assert (done.returncode, done.stderr) == (0, "")
    assert SCRIPT.match(change.read_text(encoding="utf-8"))


def test_superdl_has_what_it_calls(change):
    text = "\n".join(written(change))
    (names,) = re.findall(r"^from superdl import (.+)$", text, flags=re.MULTILINE)
    assert set(names.split(", ")) <= set(superdl.__all__)
    made = calls(text, set(names.split(", ")))
    assert len(made) >= 2, "the change uses no superdl"
    for call in made:
        words = {word.arg: word.value for word in call.keywords if word.arg is not None}
        bind = inspect.signature(called(call)).bind  # type: ignore[arg-type]
        bind(*call.args, **words)
    if "parts." in text:
        assert (
            set(re.findall(r"\bparts\.(\w+)", text))
            == {"recipe", "rest"}
            <= set(superdl.split_transform(lambda image: image).__slots__)
        )


def test_the_script_changes_by_that_much_and_stays_python(change):
    folder = os.environ.get("SUPER_EXAMPLES")
    if folder is None:
        pytest.skip("SUPER_EXAMPLES names no folder with the scripts")
    head = SCRIPT.match(change.read_text(encoding="utf-8"))
    assert head is not None
    script = Path(folder, *head.groups())
    command = ["sed", "-f", str(change), str(script)]
    after = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    differences = difflib.ndiff(script.read_text(encoding="utf-8").splitlines(), after.splitlines())
    assert sum(line.startswith("+ ") for line in differences) == len(written(change))
    compile(after, script.name, "exec")
