"""Asks the doctor as a shell would, and gives what it found by the checks' names."""

from __future__ import annotations

import json

from superdl import doctor
from superdl.main import main

__all__ = ["asked", "only"]


def asked(capsys, *words):
    """The exit code and the findings."""
    code = main(["doctor", *words, "--json"])
    return code, {finding["check"]: finding for finding in json.loads(capsys.readouterr().out)}


def only(monkeypatch, *names):
    """Leave out all checks but these: what the others look at has tests of its own."""
    monkeypatch.setattr(doctor, "CHECKS", tuple(check for check in doctor.CHECKS if check.name in names))
