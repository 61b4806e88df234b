"""A model for Hugging Face's Trainer that records its training data, and a program that runs it as a rank.

``python trainer_training.py JSON`` with the arguments of :func:`main`.
"""

import json
import sys
from pathlib import Path

import torch

from superdl.experiments.models import declare_operators
from tests.fixtures.images import SIDE
from tests.integration.frameworks import EPOCHS, GLOBAL_BATCH, code_of, named, write_down

declare_operators()  # Trainer imports torchvision if installed
from transformers import TrainerCallback, TrainingArguments  # noqa: E402  # after that


class Model(torch.nn.Module):
    """A linear model whose loss ignores the label -100, like those of transformers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.linear = torch.nn.Linear(3 * SIDE * SIDE, 4)
        self.seen = []

    def forward(self, pixel_values, labels):
        if self.training:
            self.seen.append(named((pixel_values * 255).round().to(torch.uint8), labels))
        logits = self.linear(pixel_values.flatten(1))
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


class StopAt(TrainerCallback):
    """Save and stop after a number of steps."""

    def __init__(self, steps):
        self._steps = steps

    def on_step_end(self, args, state, control, **_):
        control.should_save = control.should_training_stop = state.global_step == self._steps


def arguments(out, *, ranks=1, **settings):
    return TrainingArguments(
        str(out),
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=GLOBAL_BATCH // ranks,
        per_device_eval_batch_size=GLOBAL_BATCH // ranks,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        **settings,
    )


def trainer_of(source, given, *, ranks=1):
    """The page's trainer."""
    return code_of("transformers", source, ranks=ranks)["trainer"](Model(), given)


def main(source, out, ranks, stop_after=-1, checkpoint=None):
    """Train and evaluate as on the page."""
    trainer = trainer_of(source, arguments(Path(out), ranks=ranks), ranks=ranks)
    trainer.add_callback(StopAt(stop_after))
    trainer.train(resume_from_checkpoint=checkpoint)
    rank = trainer.args.process_index
    for batch in trainer.model.seen:
        write_down(Path(out), rank, batch)
    (Path(out) / f"loss{rank}.json").write_text(json.dumps(trainer.evaluate()["eval_loss"]))
    for loader in (trainer.train_dataset, trainer.eval_dataset):
        loader.close()
        loader.sampler.close()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
