"""``superdl run``, ``simulate`` and ``report``: the keys of a spec as options, predictions, and pages."""

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


def spec_of(*words):
    parser = argparse.ArgumentParser()
    experiment_commands.add_run(parser)
    return experiment_commands.spec_of(parser.parse_args(["digits", *words]))


def test_keys_are_options_in_the_order_of_the_command_line():
    spec = spec_of(
        "--epochs", "25", "--set", "loader.batch_size=8", "--batch-size=16", "--optimizer.lr", "1e-4"
    )
    assert (spec.epochs, spec.loader.batch_size, spec.optimizer.lr) == (25, 16, 1e-4)
    assert spec_of("--lr", "0.25", "--lr", "0.5").optimizer.lr == 0.5
    assert spec_of("--data.kind", "tiny-imagenet").data.kind == "tiny-imagenet"


SPEC = """
name: small
datasets: [{name: data, samples: 500, record_bytes: 3136}]
jobs: [{batch_size: 20, step_s: 0.05, workers: 2}]
functions: {kind: pool, concurrency: 2, decode_s: 0.01}
cache: {budget_gb: 0.01}
"""


def test_a_prediction_says_that_it_is_simulated(capsys, tmp_path):
    spec = tmp_path / "small.yaml"
    spec.write_text(SPEC, encoding="utf-8")
    words = ["simulate", str(spec), "--json"]
    assert main([*words, "--set", "jobs=null"]) == 2
    assert main(words) == 0
    shown = capsys.readouterr()
    mapping = json.loads(shown.out)
    assert (mapping["simulated"], mapping["samples_read"]) == (True, 500)
    assert "simulated" in shown.err


@pytest.fixture
def killed(tmp_path):
    """What a run leaves that was killed before its first step."""
    spec = load_spec("digits").to_mapping()
    environment = describe_machine(torch.device("cpu"))
    report = RunReport("digits", "2026-01-01T00:00:00+00:00", str(tmp_path), spec, environment)
    (tmp_path / "report.json").write_text(json.dumps(report.to_mapping()))
    return tmp_path


def test_the_page_of_a_run_is_written_also_without_matplotlib(killed, capsys, monkeypatch):
    page = killed / "report.html"
    assert main(["report", str(killed)]) == 0
    assert capsys.readouterr() == (f"{page}\n", "")
    written = read_page(page.read_text())
    assert written.title == "Run digits: running"
    assert "0 of 3 epochs" in written.text
    assert main(["report", str(killed), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result == {"page": str(page), "name": "digits", "status": "running"}
    for module in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, module, None)
    assert main(["report", str(killed)]) == 0
    assert "matplotlib" in capsys.readouterr().err


def test_a_place_that_is_no_run_or_cannot_be_written_is_named(killed, capsys):
    assert main(["report", str(killed.parent)]) == 2
    assert "It contains runs, such as" in capsys.readouterr().err
    (killed / "report.html").mkdir()
    assert main(["report", str(killed)]) == 2
    assert str(killed / "report.html") in capsys.readouterr().err
