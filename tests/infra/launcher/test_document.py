"""What docs/clusters.md names is there: options, codes, ports, files."""

from __future__ import annotations

import re
from pathlib import Path

from infra.launcher import verdicts
from infra.launcher.settings import LaunchSettings

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/clusters.md").read_text(encoding="utf-8")


def test_every_option_is_an_option():
    named = set(re.findall(r"(?<![\w-])--([a-z][a-z-]+)", PAGE))
    sources = [ROOT / f"infra/launcher/{name}.py" for name in ("options", "submit", "local")]
    code = "".join(source.read_text(encoding="utf-8") for source in sources)
    ports = {
        f"{name.removesuffix('_port')}-port" for name in LaunchSettings.__slots__ if name.endswith("_port")
    }
    scripts = {"epochs", "source", "set"}  # of the examples' train.py and superdl run
    assert {name for name in named - ports - scripts if f'"--{name}"' not in code} == set()


def test_every_exit_code_is_told():
    codes = {code for name, code in vars(verdicts).items() if name.startswith("EXIT_")} - {
        verdicts.EXIT_SIGNAL
    }
    told = set(re.findall(r"^\| ([0-9]+)", PAGE, re.MULTILINE))
    assert {str(code) for code in codes} <= told


def test_every_port_is_told():
    settings = LaunchSettings()
    for name in settings.__slots__:
        if name.endswith("_port"):
            assert f"| {getattr(settings, name)} `--{name.replace('_', '-')}`" in PAGE


def test_every_link_leads_to_a_file():
    links = re.findall(r"\]\(([^)#:]+)\)", PAGE)
    assert links
    assert [link for link in links if not (ROOT / "docs" / link).exists()] == []
