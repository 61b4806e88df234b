"""``SuperTrainerMixin``: Hugging Face's ``Trainer`` with SUPER."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from superdl.super_dataset.dataset import SuperDataset
from superdl.super_dataset.loader import SuperLoader
from superdl.super_dataset.mixing import SuperMix
from superdl.super_dataset.reading.delivery import BatchInfo
from superdl.super_wire.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Loader: TypeAlias = "SuperLoader | DataLoader[Any]"

_NO_LABEL = -100  # ignored by transformers' losses


class SuperTrainerMixin:
    """Mixin to list before ``Trainer``: ``class SuperTrainer(SuperTrainerMixin, Trainer)``.

    ``train_dataset`` and ``eval_dataset`` may each be a ``SuperDataset`` or a ``SuperMix``. Their loaders are
    built from ``TrainingArguments``, with ``dataloader_num_workers`` threads or processes. Batches have the
    keys of ``columns=``, or ``pixel_values`` and ``labels``. With ``return_info=True``, padding has the label
    -100. Either dataset may also be a loader that returns dicts: a ``SuperLoader``, or a ``DataLoader`` over
    a ``SuperSampler`` with ``batch_size=None``. Create it after ``TrainingArguments``, which creates the
    process group.

    Training resumes from a checkpoint after the last batch trained on, in constant time, even with
    ``ignore_data_skip``. The evaluation loss is the mean over samples. Samples with the label -100, such as
    padding, do not count and, if each sample has a single label, are not passed to ``compute_metrics``.

    >>> dataset = SuperDataset("images", Recipe.image(resize=32, crop=32))
    >>> loader = SuperLoader(dataset, SuperSampler(dataset, batch_size=4, shuffle=True))
    >>> class SuperTrainer(SuperTrainerMixin):  # and Trainer, whose constructor takes train_dataset=loader
    ...     train_dataset = loader
    >>> trainer = SuperTrainer()
    >>> trainer.num_examples(trainer.get_train_dataloader())
    8
    """

    def get_train_dataloader(self: Any) -> DataLoader[Any]:
        """Return the training loader, wrapped for Accelerate's ``skip_first_batches``."""
        # Accelerate would shard the loader among ranks again, and resume with a new DataLoader, which
        # loses the plan.
        loader = self._super_loader(self.train_dataset, training=True)
        return DataLoader(_Batches(loader, self), batch_size=None)

    def get_eval_dataloader(self: Any, eval_dataset: Any = None) -> Loader:
        """Return the loader for evaluation."""
        chosen = self.eval_dataset if eval_dataset is None else eval_dataset
        loader: Loader = self._super_loader(self.eval_dataset[chosen] if isinstance(chosen, str) else chosen)
        return loader

    def get_test_dataloader(self: Any, test_dataset: Any) -> Loader:
        """Return the loader for prediction."""
        loader: Loader = self._super_loader(test_dataset)
        return loader

    def _super_loader(self: Any, given: Any, *, training: bool = False) -> Loader:
        if not isinstance(given, SuperDataset | SuperMix):
            loader: Loader = given
            return loader
        loaders: dict[tuple[int, bool], Loader] = vars(self).setdefault("_super_loaders", {})
        # Keep the loader, since Trainer calls this for each evaluation.
        if (id(given), training) not in loaders:
            from superdl.sampler import SuperSampler

            args = self.args
            options: dict[str, Any] = {
                "batch_size": args.train_batch_size if training else args.eval_batch_size,
                "shuffle": training,
                "drop_last": training and args.dataloader_drop_last,
                "seed": args.seed if args.data_seed is None else args.data_seed,
            }
            loaders[id(given), training] = SuperLoader(
                given,
                SuperSampler(given, **options),
                num_workers=args.dataloader_num_workers or None,
                collate_fn=partial(_inputs, label_name=self.label_names[0]),
                pin_memory=args.dataloader_pin_memory,
            )
        return loaders[id(given), training]

    def num_examples(self, dataloader: Any) -> int:
        """Return the number of samples per epoch across all ranks."""
        dataset: Any = dataloader.dataset
        samples: Any = dataset.loader.dataset if isinstance(dataset, _Batches) else dataset
        return len(samples)

    def prediction_step(self: Any, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Run Trainer's step, and weight the batch's loss by its number of samples."""
        loss, *rest = super().prediction_step(model, inputs, *args, **kwargs)  # type: ignore[misc]
        labels = inputs.get(self.label_names[0])
        if loss is not None and labels is not None:
            count = (labels != _NO_LABEL).sum().to(self._super_losses)
            total = torch.where(count > 0, loss.to(count) * count, 0)
            self._super_losses += torch.stack([total, count])
        return loss, *rest

    def evaluation_loop(self: Any, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> Any:
        """Run Trainer's loop, and report the mean loss per sample even if a batch is short."""
        self._super_losses = torch.zeros(2, device=self.args.device)
        compute = self.compute_metrics
        self.compute_metrics = compute and partial(_labelled, compute)
        try:
            output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)  # type: ignore[misc]
        finally:
            self.compute_metrics = compute
        total, count = self.accelerator.reduce(self._super_losses).tolist()
        if count:
            output.metrics[f"{metric_key_prefix}_loss"] = total / count
        return output


def _inputs(item: Any, *, label_name: str) -> dict[str, Any]:
    """Convert an item to model arguments. If it has a ``BatchInfo``, padding gets the label -100."""
    info = item[-1] if isinstance(item, tuple) and isinstance(item[-1], BatchInfo) else None
    if isinstance(item, tuple) and not isinstance(item[0], Mapping):
        inputs = {"pixel_values": item[0], label_name: item[1]}
    else:
        inputs = dict(item[0] if isinstance(item, tuple) else item)
    if info is not None and info.padding is not None and label_name in inputs:
        inputs[label_name] = inputs[label_name].clone()
        inputs[label_name][torch.tensor(info.padding)] = _NO_LABEL
    return inputs


def _labelled(compute: Callable[..., Any], output: Any, **kwargs: Any) -> Any:
    """Compute metrics for the labelled samples, or for all samples if each has several labels."""
    labels, predictions = output.label_ids, output.predictions
    if isinstance(labels, np.ndarray) and labels.ndim == 1 and isinstance(predictions, np.ndarray):
        output = type(output)(predictions[labels != _NO_LABEL], labels[labels != _NO_LABEL])
    return compute(output, **kwargs)


class _Batches(IterableDataset[Any]):
    def __init__(self, loader: Loader, trainer: Any) -> None:
        self.loader = loader
        self._trainer: Any = trainer

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        trainer, self._trainer = self._trainer, None
        if trainer is not None:  # the first epoch of this training; later epochs follow it
            yield from repeat(None, self._seek(trainer.state, trainer.args))
        yield from self.loader

    def _seek(self, state: Any, args: Any) -> int:
        """Move the loader past the batches trained on, and return the number that Trainer will skip."""
        per_step = args.gradient_accumulation_steps
        epoch, steps = divmod(state.global_step, math.ceil(len(self) / per_step))
        # A DataLoader has no state, but its sampler does.
        stateful: Any = self.loader if hasattr(self.loader, "load_state_dict") else self.loader.sampler
        here = stateful.state_dict()
        if steps and not here["in_order"]:
            raise UsageError(
                "a Trainer cannot resume mid-epoch with in_order=False, since it only counts steps"
            )
        target = {"epoch": epoch, "position": steps * per_step, "given_ahead": []}
        stateful.load_state_dict(here | target)
        return 0 if args.ignore_data_skip else steps * per_step
