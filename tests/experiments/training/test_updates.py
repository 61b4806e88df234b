"""Updates of a model, the cost of steps and passes, and the GPU of a rank."""

import json

import pytest
import torch

from superdl.experiments.spec import OptimizerSpec
from superdl.experiments.training.device import pick_device
from superdl.experiments.training.ranks import ProcessRank
from superdl.experiments.training.steps import Updater
from superdl.super_wire.errors import ConfigError
from tests.experiments.small_runs import done, spec_of, the_run

EPOCHS = 6


def updater(model, spec, scaled_on=None):
    return Updater(model, spec, epoch_steps=4, epochs=3, scaled_on=scaled_on)


def test_a_step_with_gradients_that_are_not_finite_is_skipped():
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
    spent = sum(one["job"]["decode_s"] for one in passes)
    if kind == "super":
        assert spent > 0.95 * min(own)
        assert spent < EPOCHS / 2 * max(own), "each sample is decoded once, plus hedges"
    else:
        assert spent == pytest.approx(sum(own))
    ratios = {row["fetch_s"] / row["decode_s"] for row in rows}
    assert len(ratios) >= len({row["batch_id"] for row in rows}), "measured per sample"
    assert all((row["lr"] is None) == (row["split"] == "val") for row in rows)


def test_each_rank_has_the_gpu_of_its_local_rank(monkeypatch):
    selected = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", selected.append)
    assert pick_device("auto", ProcessRank(3, 4, 1)) == torch.device("cuda", 1)
    assert selected == [torch.device("cuda", 1)]
    assert pick_device("cpu", ProcessRank(3, 4, 1)) == torch.device("cpu")
    assert pick_device("cuda", ProcessRank()) == torch.device("cuda")
    with pytest.raises(ConfigError, match=r"rank 2 has local rank 2, but its host has 2 GPU\(s\)"):
        pick_device("auto", ProcessRank(2, 3, 2))
