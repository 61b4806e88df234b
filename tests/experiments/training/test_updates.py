"""Updates of a model, and the cost of steps and passes."""

import json

import pytest
import torch

from superdl.experiments.spec import OptimizerSpec
from superdl.experiments.training.steps import Updater
from tests.experiments.small_runs import done, spec_of, the_run

EPOCHS = 6


def updater(model, spec, scaled_on=None):
    return Updater(model, spec, epoch_steps=4, epochs=3, scaled_on=scaled_on)


def test_a_step_with_gradients_that_are_not_finite_is_skipped():
    model = torch.nn.Linear(2, 2)
    scaled = updater(model, OptimizerSpec(name="sgd", schedule="cosine"), "cpu")
    before, lr = model.weight.detach().clone(), scaled.lr
    loss = model(torch.ones(1, 2)).sum()
    assert not scaled.update(loss * float("inf"))
    assert torch.equal(model.weight, before)
    assert scaled.lr == lr
    assert scaled.update(model(torch.ones(1, 2)).sum())
    assert not torch.equal(model.weight, before)
    assert scaled.lr < lr
    state = scaled.state_dict()
    assert state["scaler"]["scale"] == 2**15, "halved once"
    again = updater(model, OptimizerSpec(name="sgd", schedule="cosine"), "cpu")
    again.load_state_dict(**state)
    assert again.state_dict() == state, "the rate itself is in the optimiser's"
    plain = updater(model, OptimizerSpec(name="sgd", schedule="cosine"))
    plain.load_state_dict(**state)
    assert plain.state_dict()["scaler"] == {}


@pytest.mark.parametrize("kind", ["super", "torch"])
def test_steps_have_the_cost_of_their_samples_and_passes_the_cost_of_decoding(digits, tmp_path, kind):
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
    spent = sum(each["job"]["decode_s"] for each in passes)
    if kind == "super":
        assert spent > 0.95 * min(own)
        assert spent < EPOCHS / 2 * max(own), "each sample is decoded once, plus hedges"
    else:
        assert spent == pytest.approx(sum(own))
    ratios = {row["fetch_s"] / row["decode_s"] for row in rows}
    assert len(ratios) >= len({row["batch_id"] for row in rows}), "measured per sample"
    assert all((row["lr"] is None) == (row["split"] == "val") for row in rows)
