"""``superdl warm`` as a command: what it refuses before it asks anybody."""

from __future__ import annotations

import json

import pytest

from superdl.main import main
from superdl.super_wire.recipe import Recipe

SIZES = ["--resize", "64", "--crop", "64"]
NOWHERE = ["--coordinator", "unix:/nowhere/coordinator.sock"]


@pytest.fixture(autouse=True)
def no_coordinator(monkeypatch):
    monkeypatch.delenv("SUPER_COORDINATOR", raising=False)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (SIZES, "needs a coordinator that stays"),
        (NOWHERE, "--resize 256 --crop 224, or --recipe FILE.json"),
        ([*NOWHERE, *SIZES, "--recipe", "r.json"], "or --recipe FILE.json"),
        ([*NOWHERE, "--recipe", "/nowhere/r.json"], "--recipe /nowhere/r.json cannot be read"),
        ([*NOWHERE, *SIZES, "--max-usd", "0"], "--max-usd is above 0"),
        ([*NOWHERE, *SIZES, "--max-bytes", "4"], "--max-bytes is a size of at least 1mb"),
        ([*NOWHERE, *SIZES, "--patience", "nan"], "--patience is above 0"),
        ([*NOWHERE, *SIZES, "--timeout", "-1"], "--timeout is above 0"),
        (["--coordinator", "here", *SIZES], "--coordinator is 'host:port' or 'unix:/path/to.sock'"),
        ([*NOWHERE, "--resize", "0"], "size"),
    ],
)
def test_wrong_use_is_told_in_a_line(capsys, words, reason):
    assert main(["warm", "/data", *words]) == 2
    told = capsys.readouterr().err
    assert told.startswith("superdl warm: ")
    assert reason in told


def test_a_random_recipe_is_refused_with_the_way_out(tmp_path, capsys):
    steps = [{"op": "random_resized_crop", "size": 64}]
    for number, text in enumerate((json.dumps(steps), Recipe(steps).json)):
        file = tmp_path / f"{number}.json"
        file.write_text(text)
        assert main(["warm", "/data", *NOWHERE, "--recipe", str(file)]) == 2
        assert "this recipe is random" in capsys.readouterr().err


def test_a_broken_recipe_is_named(tmp_path, capsys):
    file = tmp_path / "r.json"
    for text, reason in (("{", "cannot be read"), ('{"steps": []}', "pipeline"), ('[{"op": "fly"}]', "fly")):
        file.write_text(text)
        assert main(["warm", "/data", *NOWHERE, "--recipe", str(file)]) == 2
        assert reason in capsys.readouterr().err
