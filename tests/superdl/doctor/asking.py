"""Asks the doctor as a shell would, and gives what it found by the checks' names."""

from __future__ import annotations

import json
from typing import Any

from superdl.main import main

__all__ = ["asked"]


def asked(capsys, *words: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """The exit code and the findings."""
    code = main(["doctor", *words, "--json"])
    return code, {finding["check"]: finding for finding in json.loads(capsys.readouterr().out)}
