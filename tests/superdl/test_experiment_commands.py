"""``superdl run``, ``compare``, ``simulate`` and ``report`` as people type and mistype them.

A spec's keys are options of ``run`` too, as services hand hyper-parameters on.
"""

import argparse
import json
import sys

import pytest
import torch

from superdl import experiment_commands
from superdl.experiments import load_spec
from superdl.experiments.machine import describe_machine
from superdl.experiments.reporting.run_report import RunReport
from superdl.main import main
from tests.fixtures.pages import read_page


@pytest.fixture(autouse=True)
def working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["digits", "--repeats", "0"], "compare.repeats must be at least 1, not 0"),
        (["digits", "--warmup-epochs", "3"], "compare.warmup_epochs=3 leaves none"),
        (["digits", "--quick", "--warmup-epochs", "2"], "compare.warmup_epochs=2 leaves none"),
        (["--runs", "nowhere"], "nowhere is not a run directory: it has no report.json"),
        (["--runs", "nowhere", "--repeats", "2"], "--runs compares existing runs"),
        (
            ["--runs", "nowhere", "--warmup-epochs", "-1"],
            "--warmup-epochs must be a whole number of at least 0",
        ),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_written(words, message, tmp_path, capsys):
    assert main(["compare", *words]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def spec_of(*words):
    parser = argparse.ArgumentParser()
    experiment_commands.add_run(parser)
    return experiment_commands.spec_of(parser.parse_args(["digits", *words]), {})


def test_keys_are_options_in_the_order_of_the_command_line():
    spec = spec_of(
        "--epochs", "25", "--set", "loader.batch_size=8", "--batch-size=16", "--optimizer.lr", "1e-4"
    )
    assert (spec.epochs, spec.loader.batch_size, spec.optimizer.lr) == (25, 16, 1e-4)
    assert spec_of("--lr", "0.25", "--lr", "0.5").optimizer.lr == 0.5
    assert spec_of("--data.kind", "tiny-imagenet").data.kind == "tiny-imagenet"


@pytest.mark.parametrize("words", [["--kind", "torch"], ["--epoch.s", "3"]])
def test_a_name_that_is_no_key_or_of_two_sections_is_refused(words, capsys):
    with pytest.raises(SystemExit):
        spec_of(*words)
    assert "unrecognized arguments" in capsys.readouterr().err


SPEC = """
name: small
datasets: [{name: data, samples: 500, record_bytes: 3136}]
jobs: [{batch_size: 20, step_s: 0.05, workers: 2}]
functions: {kind: pool, concurrency: 2, decode_s: 0.01}
cache: {budget_gb: 0.01}
"""


@pytest.fixture
def spec(tmp_path):
    file = tmp_path / "small.yaml"
    file.write_text(SPEC, encoding="utf-8")
    return str(file)


def test_a_prediction_says_that_it_is_simulated(spec, capsys):
    assert main(["simulate", spec, "--json", "--set", "jobs=null"]) == 2
    assert main(["simulate", spec, "--json"]) == 0
    told = capsys.readouterr()
    mapping = json.loads(told.out)
    assert mapping["simulated"] is True
    assert mapping["samples_read"] == 500
    assert "small, simulated" in told.err


@pytest.fixture
def killed(tmp_path):
    """What a run leaves that was killed before its first step."""
    spec = load_spec("digits").to_mapping()
    environment = describe_machine(torch.device("cpu"))
    report = RunReport("digits", "2026-01-01T00:00:00+00:00", str(tmp_path), spec, environment)
    (tmp_path / "report.json").write_text(json.dumps(report.to_mapping()))
    return tmp_path


def test_the_page_is_made_and_named(killed, capsys):
    assert main(["report", str(killed)]) == 0
    assert capsys.readouterr().out == f"{killed / 'report.html'}\n"
    page = read_page((killed / "report.html").read_text())
    assert page.title == "Run digits: running"
    assert "Running, or killed: 0 of 3 epochs in 0 s so far." in page.text
    assert main(["report", str(killed), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"page": str(killed / "report.html"), "name": "digits", "status": "running"}


def test_without_matplotlib_that_is_told(killed, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["report", str(killed)]) == 0
    assert "the page has no plots: plots need the package matplotlib" in capsys.readouterr().err


def test_a_directory_of_no_run_is_refused(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 2
    assert "is not a run directory" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_directory_of_runs_is_refused_with_a_hint(killed, capsys):
    assert main(["report", str(killed.parent)]) == 2
    assert "its runs are below it" in capsys.readouterr().err


def test_a_place_that_cannot_be_written_is_named(killed, capsys):
    (killed / "report.html").mkdir()
    assert main(["report", str(killed)]) == 2
    assert f"cannot write {killed / 'report.html'}" in capsys.readouterr().err
