"""Arms and trials as whole specs, runs made elsewhere, and processes that are ended."""

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
    assert all(spec.loader.batch_size == 8 and spec.epochs == 4 for spec in specs)
    assert all(spec.compare == parse_spec({}).compare and not spec.trials for spec in specs)


def test_trials_lie_over_the_arm_which_lies_over_the_spec():
    arms = arms_of(
        spec_of(
            compare={"arms": {"one": {"loader.batch_size": 16, "optimizer.lr": 0.1}}},
            trials={"a": {}, "b": {"loader.batch_size": 32, "epochs": 2}},
        )
    )
    a, b = (trial.spec for trial in arms[0].trials)
    assert (a.name, a.loader.batch_size, a.epochs, a.optimizer.lr) == ("study-one-a", 16, 4, 0.1)
    assert (b.name, b.loader.batch_size, b.epochs, b.optimizer.lr) == ("study-one-b", 32, 2, 0.1)


def test_trials_share_services_only_where_functions_run_and_nobody_names_a_coordinator():
    trials = {"a": {}, "b": {"loader.batch_size": 4}}
    shared, plain = arms_of(spec_of(trials=trials))
    assert (shared.shares, plain.shares) == (True, False)
    alone, _ = arms_of(spec_of())
    assert not alone.shares
    named, _ = arms_of(spec_of(trials=trials, loader={"coordinator": "host:50051"}))
    assert not named.shares


@given(ARMS, st.integers(1, 12))
def test_arms_are_interleaved_and_every_repeat_has_every_arm_once(arms, repeats):
    rounds = rounds_of(arms, repeats)
    assert [one.number for one in rounds] == list(range(1, len(arms) * repeats + 1))
    assert [one.repeat for one in rounds] == [at // len(arms) + 1 for at in range(len(rounds))]
    for repeat in range(1, repeats + 1):
        assert sorted(one.arm for one in rounds if one.repeat == repeat) == sorted(arms)


def found_run(place, *walls_s, first=0, ranks=1, **changes):
    """The directory of a run of which only the report is there."""
    place.mkdir(parents=True)
    passes = [one_pass(samples=4000, wall_s=wall_s, produced=None) for wall_s in walls_s]
    report = run_of(*passes, images=(4000, None), first=first, ranks=ranks) | {
        "format": 4,
        "name": "found",
        "status": "finished",
        "wall_s": 30.0,
        "environment": {},
        "executor": None,
        "loader_settings": {"num_workers": 2},
    }
    report["spec"] |= {"loader": {"kind": "torch", "batch_size": 8}, "compare": {"warmup_epochs": 1}}
    (place / "report.json").write_text(json.dumps(report | changes))
    return str(place)


def test_runs_are_compared_by_name_and_what_they_do_not_tell_is_said(tmp_path):
    """Of a run that went on the first epoch is cold, whatever its number."""
    alone = found_run(tmp_path / "alone", 140.0, 40.0, executor="as the coordinator at x decides")
    ranks = found_run(tmp_path / "ranks", 10.0, 20.0, ranks=4)
    on = found_run(tmp_path / "on", 140.0, 50.0, first=3)
    found = compare_runs([f"alone={alone}", f"ranks={ranks}", f"alone={on}"])
    assert [arm.name for arm in found.arms] == ["alone", "ranks"]
    assert [one.images_per_s for one in found.figures_of("alone")] == [100.0, 80.0]
    notes = " ".join(found.notes)
    for words in (
        "ranks had 4 ranks: CPU is not compared",
        "alone used a coordinator",
    ):
        assert words in notes


def test_runs_of_different_machines_are_said_to_be(tmp_path):
    alike = [found_run(tmp_path / name, 1.0, 1.0) for name in ("a", "b")]
    other = found_run(tmp_path / "c", 1.0, 1.0, environment={"device_name": "other"})
    assert not any("machines" in note for note in compare_runs(alike).notes)
    assert compare_runs([*alike, other]).notes[-1].startswith("The runs used different machines")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"status": "failed"}, "has status failed: leave it out"),
        ({"epochs": []}, r"1 warm-up epoch\(s\) leave no epoch"),
        ({"format": 1}, "is not in format 4"),
    ],
)
def test_a_run_that_cannot_be_compared_is_refused_by_name(tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message):
        compare_runs([found_run(tmp_path / "run", 1.0, 1.0, **changes)])


_RUN = """#!{python}
import signal, sys
spec = sys.argv[-1]
if spec.endswith("fails"):
    open("{fifo}").close()  # until the other one no longer listens
    sys.exit(3)
signal.signal(signal.SIGINT, signal.SIG_IGN)
open("{fifo}", "w").close()
while True:
    signal.pause()
"""


def test_a_run_that_does_not_end_when_asked_is_killed(tmp_path, monkeypatch):
    """As one in a collective, or in a call of C, whose turn to look at signals never comes."""
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
