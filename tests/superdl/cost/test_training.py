"""What training costs on other machines, by the steps of two runs and what an hour of each costs."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from superdl.coordinator.executors.price_table import load_prices
from superdl.cost.training import TrainingCosts, step_time
from superdl.main import main
from superdl.super_wire.errors import ConfigError


def leave(directory, *step_s, epochs=1, samples=64, compute_s=0.05, gpu=None, **cost):
    """A run of so many equal epochs."""
    directory.mkdir()
    machines = {"machine": None, "machines": 1, "data_machine": None, "data_machines": 1}
    spec = {"cost": {**machines, "cache_node": None, "cache_nodes": 1, **cost}}
    manifest = {"name": directory.name, "spec": spec, "prices": asdict(load_prices(None))}
    (directory / "manifest.json").write_text(json.dumps(manifest))
    steps = [
        {
            "epoch": epoch,
            "split": split,
            "samples": samples,
            "total_s": seconds,
            "wait_s": seconds - compute_s,
            "compute_s": compute_s,
            "gpu_percent": gpu,
        }
        for epoch in range(epochs)
        for split in ("train", "val")
        for seconds in step_s
    ]
    (directory / "steps.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    return directory


def test_the_reference_of_the_study(tmp_path):
    """45 dollars an hour instead of 37.7, and 86 ms a step instead of 192: 0.53 of the cost."""
    before = leave(tmp_path / "alone", *[9.0] * 10, *[0.192] * 5, compute_s=0.0864)
    after = leave(tmp_path / "added", *[9.0] * 10, *[0.086] * 5, compute_s=0.0636)
    costs = TrainingCosts(step_time(before, 37.7), step_time(after, 45.0))
    assert costs.price_ratio == pytest.approx(45 / 37.7)
    assert costs.time_ratio == pytest.approx(86 / 192)
    assert costs.cost_ratio == pytest.approx(0.53, abs=0.005)
    assert costs.before.busy_share == pytest.approx(0.45)
    assert costs.after.busy_share == pytest.approx(0.74, abs=0.001)
    assert (costs.before.steps, costs.before.gpu_percent) == (5, None)


def test_an_hour_costs_what_the_spec_names(tmp_path):
    made = {"machine": "g5.xlarge", "machines": 2, "data_machine": "c6i.2xlarge", "data_machines": 3}
    run = leave(tmp_path / "run", 0.2, 0.4, epochs=3, gpu=60.0, **made, cache_node="cache.r7g.large")
    found = step_time(run)
    assert found.usd_per_hour == pytest.approx(2 * 1.006 + 3 * 0.34 + 0.1752)
    assert (found.steps, found.gpu_percent) == (4, 60.0), "the first epoch is not counted"
    assert found.step_s == pytest.approx(0.3)


def test_the_command_tells_people_and_programs(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    before = str(leave(tmp_path / "alone", 0.2, epochs=2, machine="g5.xlarge"))
    after = str(leave(tmp_path / "added", 0.1, epochs=2, machine="g5.xlarge", data_machine="c6i.2xlarge"))
    assert main(["cost", "--runs", before, after]) == 0
    told = capsys.readouterr().out
    assert "price ratio 1.34 x time ratio 0.50: training costs 0.67 of what it did before" in told
    assert main(["cost", "--runs", before, after, "--hourly", "1", "3", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["price_ratio"], answer["time_ratio"], answer["cost_ratio"]) == pytest.approx((3, 0.5, 1.5))
    assert answer["after"]["usd_per_hour"] == 3


def test_other_work_is_not_compared(tmp_path):
    one, other = (step_time(leave(tmp_path / str(n), 0.1, epochs=2, samples=n), 1.0) for n in (64, 32))
    with pytest.raises(ConfigError, match="64 images and those of 32 32"):
        TrainingCosts(one, other)


def test_what_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ConfigError, match="is no directory of a run"):
        step_time(tmp_path)
    with pytest.raises(ConfigError, match="names no machine .cost.machine.*give --hourly"):
        step_time(leave(tmp_path / "free", 0.1, epochs=2))
    with pytest.raises(ConfigError, match="10 training steps, of which none is left"):
        step_time(leave(tmp_path / "short", *[0.1] * 10), 1.0)
    broken = leave(tmp_path / "broken", 0.1)
    (broken / "steps.jsonl").write_text("{")
    with pytest.raises(ConfigError, match="is not a run as this version leaves it"):
        step_time(broken, 1.0)


@pytest.mark.parametrize(
    "words",
    [["--hourly", "1", "2"], ["--runs", "a", "b", "--markdown"], ["--runs", "a", "b", "--hourly", "0", "2"]],
)
def test_wrong_use_is_told(words, capsys):
    assert main(["cost", *words]) == 2
    assert "--hourly" in capsys.readouterr().err
