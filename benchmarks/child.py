"""``python -m benchmarks.child MODULE FUNCTION ARGUMENT``: calls a function here in a process of its own.

A measurement has a process to itself so that its CPU, its memory and its imports are its own. Argument and
result are dataclasses of plain values, which travel as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_args, get_origin, get_type_hints

from superdl.super_wire.errors import SuperError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["ROOT", "BenchmarkError", "run_child"]

ROOT = Path(__file__).resolve().parents[1]
_TIME_LIMIT_S = 1800.0

_Argument = TypeVar("_Argument")
_Result = TypeVar("_Result")


class BenchmarkError(SuperError):
    """A measurement could not be made, or measured something else than it says."""


def run_child(
    function: Callable[[_Argument], _Result],
    argument: _Argument,
    *,
    name: str,
    environment: Mapping[str, str] | None = None,
) -> _Result:
    """Call ``function`` in a fresh process; its result comes back.

    Args:
        function: one of a module of this folder, with annotations that can be evaluated.
        argument: a dataclass.
        name: for messages.
        environment: over this process's own.

    Raises:
        BenchmarkError: it failed or took too long; the message has what it said.

    """
    words = (function.__module__, function.__name__, json.dumps(asdict(cast("Any", argument))))
    try:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.child", *words],
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
            capture_output=True,
            text=True,
            timeout=_TIME_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise BenchmarkError(f"{name} was not done after {_TIME_LIMIT_S:g} s") from None
    if done.returncode != 0:
        raise BenchmarkError(
            f"{name} failed with exit code {done.returncode}; leave it out (--contenders) or mend it:\n"
            f"{done.stderr.strip()}"
        )
    answer = json.loads(done.stdout.splitlines()[-1])  # loaders of others may print before it
    return cast("_Result", _made(get_type_hints(function)["return"], answer))


def _made(kind: Any, value: Any) -> Any:
    """The value of that type that ``asdict`` and JSON took apart."""
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        # As Any: a dataclass's fields are known at run time alone.
        return cast("Any", kind)(**{name: _made(hints[name], one) for name, one in value.items()})
    if get_origin(kind) in (list, tuple):
        return get_origin(kind)(_made(get_args(kind)[0], one) for one in value)
    return value


def _main(module: str, name: str, argument: str) -> None:
    function = getattr(import_module(module), name)
    (kind,) = (hint for name, hint in get_type_hints(function).items() if name != "return")
    result = function(_made(kind, json.loads(argument)))
    print(json.dumps(None if result is None else asdict(result)))


if __name__ == "__main__":
    _main(*sys.argv[1:])
