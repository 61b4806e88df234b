"""``superdl compare`` as people mistype it: refused by name, before anything runs or is written."""

from __future__ import annotations

import pytest

from superdl.main import main


@pytest.fixture(autouse=True)
def working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["digits", "--repeats", "0"], "compare.repeats must be at least 1, not 0"),
        (["digits", "--warmup-epochs", "3"], "compare.warmup_epochs=3 leaves none to compare"),
        (["digits", "--quick", "--warmup-epochs", "2"], "compare.warmup_epochs=2 leaves none to compare"),
        (["--runs", "nowhere"], "nowhere holds no report.json"),
        (["--runs", "nowhere", "--repeats", "2"], "--runs compares what is there"),
        (["--runs", "nowhere", "--warmup-epochs", "-1"], "--warmup-epochs is a whole number of at least 0"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_written(words, message, tmp_path, capsys):
    assert main(["compare", *words]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
