"""Runs ``superdl warm`` for tests, and looks at what it left."""

from __future__ import annotations

import json

from superdl.main import main

SIDE = 32
LARGE = 128


def warm(stack, source, *options, side=SIDE):
    sizes = ("--resize", str(side), "--crop", str(side))
    return main(["warm", str(source), "--coordinator", stack.address, *sizes, *options])


def told(capsys):
    return json.loads(capsys.readouterr().out)


def records(stack):
    with stack.valkey.client() as client:
        return len(client.keys("super:r1:*"))
