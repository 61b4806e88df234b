"""Runs ``superdl warm`` for tests, and looks at what it left."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from superdl.main import main

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.fixtures.stack import Stack

SIDE = 32
LARGE = 128


def warm(stack: Stack, source: Path, *options: str, side: int = SIDE) -> int:
    sizes = ("--resize", str(side), "--crop", str(side))
    return main(["warm", str(source), "--coordinator", stack.address, *sizes, *options])


def told(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    mapping: dict[str, Any] = json.loads(capsys.readouterr().out)
    return mapping


def records(stack: Stack) -> int:
    with stack.valkey.client() as client:
        return len(client.keys("super:r1:*"))
