"""``superdl doctor`` prints no credentials, works without torch, and has a page that lists all checks."""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from superdl.doctor import CHECKS
from superdl.doctor_command import add_arguments
from superdl.main import main
from tests.superdl.doctor.conftest import only

PAGE = Path(__file__).resolve().parents[3] / "docs" / "monitoring.md"


@pytest.mark.parametrize(
    "words",
    [
        ["s3://AKIA:geheim@bucket/x"],
        ["https://u:geheim@h/x"],
        [".", "--key-list", "https://h/a.csv?sig=geheim"],
        ["--coordinator", "user:geheim@host:1"],
        ["--cache", "redis://:geheim@h:1"],
    ],
)
def test_credentials_in_addresses_are_not_repeated(capfd, monkeypatch, words):
    only(monkeypatch, "coordinator", "cache")
    assert main(["doctor", *words]) in {1, 2}
    assert "geheim" not in "".join(capfd.readouterr())


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
from superdl.main import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_without_torch_as_beside_a_coordinator(images, valkey):
    command = [sys.executable, "-c", WITHOUT_TORCH, "doctor", str(images), "--cache", valkey.url, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    found = {one["check"]: one for one in json.loads(done.stdout)}
    assert done.returncode == 0, done.stderr
    assert found["listing"]["verdict"] == found["function"]["verdict"] == "ok"
    for check in ("cache", "sample"):
        assert found[check]["verdict"] == "skip"
        assert "torch is not installed here" in found[check]["reason"]


def test_its_page_has_every_check_in_order_and_no_other_options():
    page = PAGE.read_text(encoding="utf-8").partition("\n## The doctor\n")[2].partition("\n## ")[0]
    table = page.partition("## The checks, in their order")[2]
    assert re.findall(r"^\| `([a-z ]+)` \|", table, re.MULTILINE) == [check.name for check in CHECKS]
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    options = set(re.findall(r"(?<![\w-])(--[a-z][a-z-]+)", page))
    assert options
    assert options <= set(re.findall(r"--[a-z-]+", parser.format_help()))
