"""Arms and trials as complete specs, comparisons of existing runs, and runs that do not exit."""

import json
import os
import signal
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superdl.experiments.comparing import processes
from superdl.experiments.comparing.arms import arms_of, rounds_of
from superdl.experiments.comparing.comparison import compare_runs
from superdl.experiments.comparing.processes import RunProcess, run_together
from superdl.experiments.spec import parse_spec
from superdl.super_wire.errors import ConfigError
from tests.experiments.comparing.reports import one_pass, run_of

ARMS = st.lists(st.text("abcdefgh", min_size=1, max_size=3), min_size=1, max_size=6, unique=True)


def spec_of(**sections):
    return parse_spec({"name": "study", "epochs": 4, "loader": {"batch_size": 8}, **sections})


def test_without_arms_super_is_compared_with_torch():
    arms = arms_of(spec_of())
    assert [arm.name for arm in arms] == ["super", "torch"]
    specs = [arm.trials[0].spec for arm in arms]
    assert [spec.loader.kind for spec in specs] == ["super", "torch"]
    assert [spec.name for spec in specs] == ["study-super", "study-torch"]
    assert not arms[0].shares


def test_a_trial_overrides_its_arm_which_overrides_the_spec():
    arms = arms_of(
        spec_of(
            compare={"arms": {"one": {"loader.batch_size": 16, "optimizer.lr": 0.1}}},
            trials={"a": {}, "b": {"loader.batch_size": 32, "epochs": 2}},
            loader={"coordinator": "host:50051"},
        )
    )
    a, b = (trial.spec for trial in arms[0].trials)
    assert (a.name, a.loader.batch_size, a.epochs, a.optimizer.lr) == ("study-one-a", 16, 4, 0.1)
    assert (b.name, b.loader.batch_size, b.epochs, b.optimizer.lr) == ("study-one-b", 32, 2, 0.1)
    assert not arms[0].shares, "they use the given coordinator"


@pytest.mark.parametrize("launch", ["torchrun '", ["torchrun"], 1])
def test_a_launch_that_is_no_command_is_refused(launch):
    with pytest.raises(ConfigError, match="launch must be a command"):
        arms_of(spec_of(compare={"arms": {"two": {"launch": launch}}}))


@given(ARMS, st.integers(1, 12))
def test_arms_are_interleaved_and_run_once_per_repeat(arms, repeats):
    rounds = rounds_of(arms, repeats)
    assert [turn.number for turn in rounds] == list(range(1, len(arms) * repeats + 1))
    assert [turn.repeat for turn in rounds] == [at // len(arms) + 1 for at in range(len(rounds))]
    for repeat in range(1, repeats + 1):
        assert sorted(turn.arm for turn in rounds if turn.repeat == repeat) == sorted(arms)
    if repeats >= len(arms):
        assert len({turn.arm for turn in rounds[:: len(arms)]}) == len(arms), "each arm runs first"


def write_report(directory, *walls_s, first=0, ranks=1, **changes):
    """Write the report of a finished run, and return its directory."""
    directory.mkdir(parents=True)
    passes = [one_pass(samples=4000, wall_s=wall_s, produced=None) for wall_s in walls_s]
    report = run_of(*passes, images=(4000, None), first=first, ranks=ranks) | {
        "format": 4,
        "name": "colours",
        "status": "finished",
        "wall_s": 30.0,
        "environment": {},
        "executor": None,
        "loader_settings": {"num_workers": 2},
    }
    report["spec"] |= {"loader": {"kind": "torch", "batch_size": 8}, "compare": {"warmup_epochs": 1}}
    (directory / "report.json").write_text(json.dumps(report | changes))
    return str(directory)


def test_existing_runs_are_compared_by_name_with_notes(tmp_path):
    """The first epoch of a resumed run is its warm-up, whatever its number."""
    alone = write_report(tmp_path / "alone", 140.0, 40.0, executor="as the coordinator at x decides")
    ranks = write_report(tmp_path / "ranks", 10.0, 20.0, ranks=4, environment={"device_name": "other"})
    resumed = write_report(tmp_path / "resumed", 140.0, 50.0, first=3)
    comparison = compare_runs([f"alone={alone}", f"ranks={ranks}", f"alone={resumed}"])
    assert [arm.name for arm in comparison.arms] == ["alone", "ranks"]
    assert [figures.images_per_s for figures in comparison.figures_of("alone")] == [100.0, 80.0]
    notes = " ".join(comparison.notes)
    for text in ("ranks had 4 ranks. CPU is not", "alone used a coordinator", "used different machines"):
        assert text in notes
    assert "machines" not in " ".join(compare_runs([alone, resumed]).notes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"status": "failed"}, "its status is failed"),
        ({"epochs": []}, "has no epoch after 1 warm-up epoch"),
        ({"format": 1}, "is not in format 4"),
    ],
)
def test_a_run_that_cannot_be_compared_is_refused(tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message):
        compare_runs([write_report(tmp_path / "run", 1.0, 1.0, **changes)])


_RUN = """#!{python}
import signal, sys
spec = sys.argv[-1]
if spec.endswith("fails"):
    open("{fifo}").close()  # until the other one ignores SIGINT
    sys.exit(3)
signal.signal(signal.SIGINT, signal.SIG_IGN)
open("{fifo}", "w").close()
while True:
    signal.pause()
"""


def test_a_run_that_ignores_an_interrupt_is_killed(tmp_path, monkeypatch):
    fifo, stand_in = tmp_path / "fifo", tmp_path / "run"
    os.mkfifo(fifo)
    stand_in.write_text(_RUN.format(python=sys.executable, fifo=fifo))
    stand_in.chmod(0o700)
    monkeypatch.setattr(processes, "sys", SimpleNamespace(executable=str(stand_in)))
    runs = [RunProcess(name, tmp_path / name, tmp_path / f"{name}.txt") for name in ("fails", "hangs")]
    run_together(runs, end_wait_s=0.1)
    failed, hung = runs
    assert (failed.code, failed.was_ended) == (3, False)
    assert (hung.code, hung.was_ended) == (-signal.SIGKILL, True)
