"""SUPER in Hugging Face's Trainer: docs/frameworks.md verbatim, its loss, and resuming."""

import json
import tempfile
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from superdl import PerSample, SuperDataset, SuperTrainerMixin
from tests.integration.delivery import RECIPE
from tests.integration.frameworks import BATCHES, EPOCHS, code_of, plain_loop, together, two_ranks

pytest.importorskip("transformers", reason="the extra dev brings transformers")

from tests.integration import trainer_training
from tests.integration.trainer_training import Model, StopAt, arguments, trainer_of

PROGRAM = str(Path(trainer_training.__file__))


@pytest.fixture(scope="module")
def expected(shared_stack, images):
    return list(chain.from_iterable(plain_loop(images.as_uri(), shared_stack.address)))


@pytest.fixture
def make(shared_stack, images, tmp_path, monkeypatch):
    monkeypatch.setenv("SUPER_COORDINATOR", shared_stack.address)
    made = []

    def trainer(**settings):
        made.append(trainer_of(images.as_uri(), arguments(tmp_path, **settings)))
        return made[-1]

    yield trainer
    for each in made:
        for loader in (each.train_dataset, each.eval_dataset):
            loader.close()
            loader.sampler.close()


def test_the_page_trains_on_what_a_plain_loop_gets(make, expected):
    trainer = make()
    result = trainer.train()
    assert trainer.model.seen == expected
    assert trainer.state.global_step == EPOCHS * BATCHES
    assert trainer.num_examples(trainer.get_train_dataloader()) == 150
    assert result.metrics["epoch"] == EPOCHS


def test_the_loss_of_an_evaluation_is_the_mean_over_its_samples(make):
    trainer = make()
    losses = []
    for batch in trainer.get_eval_dataloader():
        with torch.no_grad():
            logits = trainer.model.linear(batch["pixel_values"].flatten(1))
        losses.append(torch.nn.functional.cross_entropy(logits, batch["labels"], reduction="none"))
    assert len(losses[-1]) < len(losses[0])
    mean = pytest.approx(torch.cat(losses).mean().item(), rel=1e-5)
    assert trainer.evaluate()["eval_loss"] == mean
    assert trainer.evaluate(_in_a_worker(trainer.eval_dataset))["eval_loss"] == mean
    assert trainer.predict(trainer.eval_dataset).metrics["test_loss"] == mean


@pytest.mark.parametrize(
    ("steps", "settings"),
    [
        pytest.param(10, {}, marks=pytest.mark.slow),
        (13, {}),
        (13, {"ignore_data_skip": True}),
        (4, {"gradient_accumulation_steps": 4}),  # three steps per epoch, the last of two batches
    ],
)
def test_a_checkpoint_is_gone_on_with(make, expected, tmp_path, steps, settings):
    whole, first, then = (make(**settings) for _ in range(3))
    whole.train()
    first.add_callback(StopAt(steps))
    first.train()
    then.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{steps}"))
    assert 0 < len(first.model.seen) < len(expected)
    assert first.model.seen + then.model.seen == expected
    assert then.state.global_step == whole.state.global_step
    for mine, theirs in zip(then.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_dataloader_with_workers_goes_on_too(make, expected, tmp_path, monkeypatch):
    first, then = make(), make()
    for trainer in (first, then):
        ours = _in_a_worker(trainer.train_dataset)
        monkeypatch.setattr(trainer, "get_train_dataloader", partial(_over, trainer, ours))
    first.add_callback(StopAt(13))
    first.train()
    then.train(resume_from_checkpoint=str(tmp_path / "checkpoint-13"))
    assert 0 < len(first.model.seen) < len(expected)
    assert first.model.seen + then.model.seen == expected


@pytest.mark.parametrize("workers", [0, 1])
def test_of_datasets_it_makes_the_loaders(here, images, expected, tmp_path, workers):
    def scaled(array):
        return torch.from_numpy(array.transpose(2, 0, 1) / np.float32(255))

    def trainer():
        transform = PerSample(scaled, seed=None, takes="numpy")
        training, validation = (
            SuperDataset(images, RECIPE, transform=transform, coordinator=here, **how)
            for how in ({}, {"columns": {"pixel_values": "images", "labels": "labels"}, "return_info": True})
        )
        given = arguments(tmp_path, data_seed=0, dataloader_num_workers=workers)
        return code_of("transformers", "")["SuperTrainer"](
            Model(), given, train_dataset=training, eval_dataset=validation
        )

    first, then = trainer(), trainer()
    first.add_callback(StopAt(13))
    first.train()
    then.train(resume_from_checkpoint=str(tmp_path / "checkpoint-13"))
    assert first.model.seen + then.model.seen == expected
    assert then.get_eval_dataloader() is then.get_eval_dataloader(then.eval_dataset)
    assert then.evaluate()["eval_loss"] > 0
    assert then.predict(then.eval_dataset).label_ids.shape == (150,)


@pytest.mark.parametrize("columns", [None, {"pixel_values": "images", "labels": "labels"}])
def test_padding_has_no_label(here, images, tmp_path, monkeypatch, columns):
    dataset = SuperDataset(images, RECIPE, columns=columns, return_info=True, coordinator=here)
    trainer = code_of("transformers", "")["SuperTrainer"](
        Model(), arguments(tmp_path), train_dataset=dataset, eval_dataset=dataset
    )
    for name, value in {"WORLD_SIZE": "4", "RANK": "3"}.items():  # 150 samples are padded to 152 for 4 ranks
        monkeypatch.setenv(name, value)
    loader = trainer.get_eval_dataloader()
    *full, last = (batch["labels"].tolist() for batch in loader)
    loader.close()
    loader.sampler.close()
    assert last[-1] == -100
    assert {*chain(*full)} <= {0, 1, 2, 3}


def test_metrics_are_of_samples_that_have_a_label(make):
    seen = []
    trainer = make()
    trainer.compute_metrics = lambda found: seen.append(found) or {"n": len(found.label_ids)}
    named = trainer.eval_dataset
    batches = [{**batch, "labels": batch["labels"].index_fill(0, torch.tensor([1]), -100)} for batch in named]
    result = trainer.evaluation_loop(DataLoader(batches, batch_size=None), "Evaluation")
    assert result.metrics["eval_n"] == 150 - len(batches) == len(seen[0].predictions)
    assert len(result.label_ids) == 150


def _in_a_worker(loader):
    """A ``DataLoader`` with a worker, over the page's loader's dataset and sampler."""
    named = code_of("transformers", "")["named"]
    return DataLoader(
        loader.dataset, sampler=loader.sampler, batch_size=None, num_workers=1, collate_fn=named
    )


def _over(trainer, loader):
    """What the mixin returns for a ``DataLoader`` in place of the page's loader."""
    mine, trainer.train_dataset = trainer.train_dataset, loader
    try:
        return SuperTrainerMixin.get_train_dataloader(trainer)
    finally:
        trainer.train_dataset = mine


@pytest.mark.slow
def test_two_ranks_train_go_on_and_evaluate_as_one(make, images, expected, tmp_path):
    one = make()
    one.train()
    with tempfile.TemporaryDirectory(prefix="super-h-") as temporary:
        first, then = tmp_path / "first", tmp_path / "then"
        assert two_ranks(PROGRAM, Path(temporary), images, first, stop_after=13) == ""
        assert (
            two_ranks(PROGRAM, Path(temporary), images, then, checkpoint=str(first / "checkpoint-13")) == ""
        )
    assert together(first, 2) + together(then, 2) == expected
    for rank in range(2):
        loss = json.loads((then / f"loss{rank}.json").read_text())
        assert loss == pytest.approx(one.evaluate()["eval_loss"], rel=1e-3)
