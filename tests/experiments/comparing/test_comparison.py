"""Whole comparisons of real runs: their results, and how they end."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from superdl.experiments.comparing.comparison import (
    ArmReport,
    Comparison,
    RoundReport,
    compare_runs,
    read_comparison,
)
from superdl.experiments.comparing.figures import round_figures
from superdl.experiments.comparing.running import compare
from superdl.experiments.spec import parse_spec
from superdl.main import main as superdl
from superdl.super_wire.errors import SuperError
from tests.experiments.comparing.reports import measured, one_pass, run_of
from tests.fixtures.pages import read_page

ROOT = Path(__file__).resolve().parents[3]
END_TIMEOUT_S = 60.0


def spec_of(colours, **sections):
    common = {
        "name": "colours",
        "epochs": 2,
        "output": str(colours.parent / "runs"),
        "data": {"train": str(colours / "train"), "val": str(colours / "val")},
        "recipe": {"resize": 16, "crop": 16},
        "loader": {"batch_size": 8, "num_workers": 0},
        "training": {"threads": 1},
        "compare": {"repeats": 1},
    }
    return parse_spec(common | sections)


def the_directory(colours):
    (directory,) = (colours.parent / "runs").iterdir()
    return directory


@pytest.mark.parametrize(("trials", "whole"), [(["a", "b"], True), ([], False)])
def test_concurrent_trials_have_the_cost_of_whole_runs(trials, whole):
    bill = {"lines": [{"name": "training machine", "usd": 2.0}], "epochs": [{"usd": 1.0}] * 2}
    runs = (run_of(one_pass(), one_pass(), bill=bill),) * max(1, len(trials))
    figures = round_figures(measured(*runs), 1)
    arm, rounds = ArmReport("super", trials=trials), [RoundReport(1, 1, "super", "", figures)]
    report = Comparison("costs", "", "", 1, 1, [arm], rounds)
    assert [figure.whole for figure in report.shown() if figure.key == "usd_per_epoch"] == [whole]
    about_warmup = next(sentence for subject, sentence in report.conclusions() if subject == "Warm-up:")
    assert ("cost," in about_warmup) == whole


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_super_and_torch_side_by_side(colours, console):
    report = compare(spec_of(colours), console=console)
    assert report.status == "finished"
    assert [turn.arm for turn in report.rounds] == ["super", "torch"]
    by_arm = {arm.name: report.figures_of(arm.name)[0] for arm in report.arms}
    assert [figures.decodes_per_image for figures in by_arm.values()] == [1.0, 2.0]
    assert {"trainer", "coordinator", "cache"} <= by_arm["super"].cpu_ms_by_group.keys()
    assert by_arm["torch"].cpu_ms_by_group.keys() == {"trainer"}
    for figures in by_arm.values():
        assert figures.images_per_s > 0
        assert 0 <= figures.wait_percent <= 100
        assert figures.cpu_s > 0
        assert figures.wall_s > figures.first_batch_s
    directory = the_directory(colours)
    files = {"compare.json", "report.html", "runs", "spec.yaml"}
    assert {entry.name for entry in directory.iterdir()} == files
    assert read_comparison(directory) == report
    run = next((directory / "runs" / "02-torch").glob("colours-torch-*"))
    again = compare_runs([f"before={run}"])
    assert again.figures_of("before")[0].images_per_s == by_arm["torch"].images_per_s
    (directory / "report.html").unlink()
    assert superdl(["report", str(directory)]) == 0
    page = read_page((directory / "report.html").read_text())
    assert page.headings == ["Side by side", "Every round", "What ran"]
    assert page.loads == []
    assert page.tables[0].head[2:] == ["super", "torch", "winner"]
    assert not [head for table in page.tables for head in table.head if "()" in head]
    printed = console.file.getvalue()  # type: ignore[attr-defined]  # it is a StringIO
    assert "[2/2] torch done in" in printed
    assert "only figures of whole runs include the first epoch" in printed
    assert "super, torch ran only once" in printed


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_an_arm_may_have_its_own_command(colours, console):
    """Two ranks beside one. If the command fails, so does the comparison."""
    arms = {
        "one": {"loader.kind": "torch"},
        "two": {"launch": "torchrun --standalone --nproc-per-node 2", "loader.batch_size": 4},
    }
    report = compare(spec_of(colours, compare={"repeats": 1, "arms": arms}), console=console)
    single, double = (report.figures_of(name)[0] for name in ("one", "two"))
    assert double.decodes_per_image == 1.0
    assert double.cpu_ms_per_image is None, "only rank 0 is measured"
    assert double.cpu_s > single.cpu_s
    (run,) = (the_directory(colours) / "runs" / "02-two").glob("colours-two-*")
    assert json.loads((run / "report.json").read_text())["ranks"] == 2
    failing = {"fails": {"launch": "env SUPER_TOKEN_FILE=/nowhere false"}}
    with pytest.raises(SuperError, match="fails, repeat 1"):
        compare(spec_of(colours, compare={"repeats": 1, "arms": failing}), console=console)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_concurrent_trials_decode_each_image_once(colours, console):
    trials = {"a": {"loader.batch_size": 4}, "b": {}, "c": {"optimizer.lr": 0.01, "epochs": 3}}
    spec = spec_of(colours, trials=trials, compare={"repeats": 2, "warmup_epochs": 0})
    earlier = embedded_coordinators()
    report = compare(spec, arms=["super"], console=console)
    assert len(report.figures_of("super")) == 2
    for figures in report.figures_of("super"):
        assert figures.decodes_per_image == 1.0, "shared, and started cold for each repeat"
        assert {"coordinator", "cache", "functions"} <= figures.cpu_ms_by_group.keys()
        assert figures.cpu_ms_by_group["functions"] > 0
    places = sorted((the_directory(colours) / "runs" / "01-super").iterdir())
    assert [place.name for place in places] == ["a", "b", "c"]
    assert embedded_coordinators() == earlier


def embedded_coordinators():
    name = "superdl.coordinator.embedded"
    return {p.pid for p in psutil.Process().children(recursive=True) if name in p.cmdline()}


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_failed_run_ends_the_comparison(colours, console):
    (colours / "train" / "red" / "0.png").write_bytes(b"no picture")
    good = {"loader.kind": "torch", "data.train": str(colours / "val")}
    spec = spec_of(colours, compare={"repeats": 2, "arms": {"good": good, "bad": {"loader.kind": "torch"}}})
    named = r"(?s)the run of bad, repeat 1 ended with exit code 1.*0\.png"
    with pytest.raises(SuperError, match=named):
        compare(spec, console=console)
    read = read_comparison(the_directory(colours))
    assert (read.status, [turn.arm for turn in read.rounds]) == ("failed", ["good"])
    assert "0.png" in read.reason


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_process_survives_an_interrupted_or_killed_comparison(colours, number):
    """Two trials that would train for hours are running."""
    import yaml

    trials = {"a": {}, "b": {"loader.batch_size": 4}}
    arms = {"torch": {"loader.kind": "torch"}, "super": {"loader.kind": "super", "epochs": 100_000}}
    spec = spec_of(colours, trials=trials, compare={"repeats": 2, "arms": arms})
    file = colours.parent / "spec.yaml"
    file.write_text(yaml.safe_dump(spec.to_mapping(), sort_keys=False))
    with tempfile.TemporaryDirectory(prefix="super-c-") as temporary:
        environment = os.environ | {"TMPDIR": temporary, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-P", "-m", "superdl.main", "compare", str(file)]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True
        )
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if line.startswith("[2/4]"):
                    break
            directory = the_directory(colours)
            wait_for_steps(process, [directory / "runs" / "02-super" / name for name in ("a", "b")])
            family = psutil.Process(process.pid).children(recursive=True)
            assert len(family) >= 5, "two runs, coordinator, cache and worker at least"
            os.killpg(process.pid, number)
            process.stdout.read()
            assert process.wait(END_TIMEOUT_S) == (130 if number == signal.SIGINT else -signal.SIGKILL)
            _, alive = psutil.wait_procs(family, timeout=END_TIMEOUT_S)
            assert not alive, [member.cmdline() for member in alive]
        finally:
            for member in (
                psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
            ):
                member.kill()
            process.kill()
            process.wait()
            process.stdout.close()
        assert not [path for path in Path(temporary).rglob("*") if path.is_socket()]
    read = read_comparison(directory)
    assert read.status == ("interrupted" if number == signal.SIGINT else "running")
    assert [turn.arm for turn in read.rounds] == ["torch"]
    for report in (directory / "runs" / "02-super").glob("*/*/report.json"):
        assert json.loads(report.read_text())["status"] == "interrupted"


def wait_for_steps(process, places):
    """Wait until each run has written steps. The comparison must not exit before."""
    while not all(any(file.stat().st_size for file in place.glob("*/steps.jsonl")) for place in places):
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.1)
