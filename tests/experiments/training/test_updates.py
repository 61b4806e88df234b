"""Optimisers, schedules and loss scaling are torch's, as specs name them; what is spent is told once."""

from __future__ import annotations

import json

import pytest
import torch

from superdl.experiments.spec import OptimizerSpec
from superdl.experiments.training.updates import Updater, learning_rate_factor
from tests.experiments.training.resuming import done, spec_of, the_run

EPOCHS = 6


def updater(model: torch.nn.Module, spec: OptimizerSpec, scaled_on: str | None = None) -> Updater:
    return Updater(model, spec, epoch_steps=4, epochs=3, scaled_on=scaled_on)


def test_the_schedules_are_what_they_are_called():
    def rates(**spec: object) -> list[float]:
        made = OptimizerSpec(lr=1.0, **spec)
        return [round(learning_rate_factor(made, step, 4, 12), 3) for step in range(13)]

    assert rates(schedule="constant") == [1.0] * 13
    steps = rates(schedule="step", step_epochs=1, step_factor=0.5)
    assert steps == [*[1.0] * 4, *[0.5] * 4, *[0.25] * 4, 0.125]
    warm = rates(schedule="cosine", warmup_epochs=1)
    assert warm[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert (warm[8], warm[12]) == (0.5, 0.0)
    torchs = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(torchs, 12)
    for rate in rates(schedule="cosine"):
        assert torchs.param_groups[0]["lr"] == pytest.approx(rate, abs=1e-3)
        torchs.step()
        cosine.step()


@pytest.mark.parametrize("name", ["adamw", "sgd"])
@pytest.mark.parametrize("schedule", ["one_cycle", "cosine"])
def test_the_optimiser_is_the_one_that_is_named_with_its_settings(name, schedule):
    spec = OptimizerSpec(name=name, lr=0.3, weight_decay=0.02, nesterov=name == "sgd", schedule=schedule)
    made = updater(torch.nn.Linear(2, 2), spec)
    group = made.optimizer.param_groups[0]
    assert type(made.optimizer).__name__.lower() == name
    assert group["weight_decay"] == 0.02
    if name == "sgd":
        assert (group["momentum"], group["nesterov"]) == (0.9, True), "a one-cycle schedule leaves it alone"
    assert made.lr == pytest.approx(0.3 / 25 if schedule == "one_cycle" else 0.3)


def test_a_step_whose_gradients_are_not_finite_changes_nothing_and_is_not_counted_by_the_schedule():
    model = torch.nn.Linear(2, 2)
    made = updater(model, OptimizerSpec(name="sgd", schedule="cosine"), "cpu")
    before, lr = model.weight.detach().clone(), made.lr
    loss = model(torch.ones(1, 2)).sum()
    assert not made.update(loss * float("inf"))
    assert torch.equal(model.weight, before)
    assert made.lr == lr
    assert made.update(model(torch.ones(1, 2)).sum())
    assert not torch.equal(model.weight, before)
    assert made.lr < lr
    state = made.state_dict()
    assert state["scaler"]["scale"] == 2**15, "halved once"
    again = updater(model, OptimizerSpec(name="sgd", schedule="cosine"), "cpu")
    again.load_state_dict(**state)
    assert again.state_dict() == state, "the rate itself is in the optimiser's"
    plain = updater(model, OptimizerSpec(name="sgd", schedule="cosine"))
    plain.load_state_dict(**state)
    assert plain.state_dict()["scaler"] == {}


@pytest.mark.parametrize("kind", ["super", "torch"])
def test_steps_have_what_their_own_samples_cost_and_passes_what_was_spent(digits, tmp_path, kind):
    done(spec_of(digits, tmp_path / "runs", f"loader.kind={kind}", f"epochs={EPOCHS}", "recipe.resize=70"))
    run = the_run(tmp_path / "runs")
    rows = [json.loads(line) for line in (run / "steps.jsonl").read_text().splitlines()]
    own = [sum(row["decode_s"] for row in rows if row["epoch"] == epoch) for epoch in range(EPOCHS)]
    passes = [
        epoch[split]
        for epoch in json.loads((run / "report.json").read_text())["epochs"]
        for split in epoch
        if split in ("train", "val")
    ]
    spent = sum(one["decode_s"] for one in passes)
    if kind == "super":
        assert spent > 0.95 * min(own)
        # Requests that raced stragglers are spent too.
        assert spent < EPOCHS / 2 * max(own), "the same samples, made once: not epochs times as much"
    else:
        assert spent == pytest.approx(sum(own))
    ratios = {row["fetch_s"] / row["decode_s"] for row in rows}
    assert len(ratios) >= len({row["batch_id"] for row in rows}), "no shares of what several have cost"
    assert all((row["lr"] is None) == (row["split"] == "val") for row in rows)
