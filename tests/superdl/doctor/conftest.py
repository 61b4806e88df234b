"""Run ``superdl doctor`` in an environment without settings."""

import json
import os

import pytest

from superdl import doctor
from superdl.main import main


@pytest.fixture(autouse=True)
def _nothing_is_named(monkeypatch):
    for name in list(os.environ):
        if name.startswith(("SUPER_", "AWS_")) and name not in {"SUPER_STORE", "SUPER_STATE"}:
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")


def run_doctor(capsys, *words):
    """The exit code and the findings."""
    code = main(["doctor", *words, "--json"])
    return code, {finding["check"]: finding for finding in json.loads(capsys.readouterr().out)}


def check_findings(capsys, *words, **expected):
    """Compare checks' verdicts and what they say; the exit code follows from all verdicts."""
    code, found = run_doctor(capsys, *words)
    assert code == any(finding["verdict"] == "fail" for finding in found.values())
    for name, (verdict, *texts) in expected.items():
        finding = found[name.replace("_", " ")]
        said = f"{finding['reason']} {finding['remedy']}"
        assert (finding["verdict"], [text for text in texts if text not in said]) == (verdict, []), finding
    return found


def only(monkeypatch, *names):
    """Leave out all checks but these: what the others look at has tests of its own."""
    monkeypatch.setattr(doctor, "CHECKS", tuple(check for check in doctor.CHECKS if check.name in names))
