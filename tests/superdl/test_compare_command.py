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
        (["digits", "--quick"], "no section quick"),
        (["--runs", "nowhere"], "nowhere holds no report.json"),
        (["--runs", "nowhere", "--repeats", "2"], "--runs compares what is there"),
        (["--runs", "nowhere", "--warmup-epochs", "-1"], "--warmup-epochs is a whole number of at least 0"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_written(words, message, tmp_path, capsys):
    assert main(["compare", *words]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_study_of_trials_that_share_is_whole_in_both_variants():
    from superdl.experiments.comparing.arms import arms_of
    from superdl.experiments.spec import load_spec

    for quick in (False, True):
        arms = arms_of(load_spec("hpo_sharing", quick=quick))
        assert [(arm.name, len(arm.trials), arm.sharing is not None) for arm in arms] == [
            ("super", 8, True),
            ("torch", 8, False),
        ]
        assert len({trial.spec.loader.batch_size for trial in arms[0].trials}) >= 4
