"""SUPER as a loader, used only through its public API, as in a user's script."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from superdl.experiments.loaders.decoding import end_workers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from superdl.experiments.loaders.samples import Batch, LoaderRequest
    from superdl.sampler import SuperSampler
    from superdl.super_dataset import SuperDataset


def open_super(request: LoaderRequest) -> SuperReader:
    """Open a split with a DataLoader, through the spec's coordinator or the default one."""
    dataset, sampler = _open(request)
    batches = DataLoader(dataset, batch_size=None, sampler=sampler, **request.worker_options())
    return SuperReader(dataset, sampler, batches, {"batch_size": None, **request.worker_options()})


def open_super_threads(request: LoaderRequest) -> SuperReader:
    """Open a split with a SuperLoader, which reads it in threads. ``num_workers`` is ignored."""
    from superdl.super_dataset import SuperLoader

    dataset, sampler = _open(request)
    device = "cuda" if request.pin_memory else None
    return SuperReader(dataset, sampler, SuperLoader(dataset, sampler, device), {"device": device})


def _open(request: LoaderRequest) -> tuple[SuperDataset, SuperSampler]:
    from superdl.doctor import preflight
    from superdl.sampler import SuperSampler  # not needed with other loaders
    from superdl.super_dataset import Recipe, SuperDataset

    source, spec = request.source, request.recipe
    recipe = Recipe.image(resize=spec.resize, crop=spec.crop)
    if spec.steps is not None:
        recipe = Recipe(spec.steps, augment_seed=spec.augment_seed)
    dataset = SuperDataset(
        source.url,
        recipe=recipe,
        key_list=source.key_list,
        classes=source.classes or None,
        return_info=True,
        read_timeout=request.loader.read_timeout,
        on_bad_sample=request.loader.on_bad_sample,  # type: ignore[arg-type]  # checked by the spec
    )
    sampler = SuperSampler(
        dataset,
        batch_size=request.loader.batch_size,
        shuffle=request.training,
        seed=request.seed,
        coordinator=request.loader.coordinator,
        rank=request.rank,
        num_replicas=request.replicas,
    )
    if sampler.kept and (request.loader.coordinator or os.environ.get("SUPER_COORDINATOR")):
        request.print_line(sampler.kept)  # an embedded coordinator prints it itself
    if request.training:
        try:
            # Every rank tests its host's connection to the cache; rank 0 also tests the functions.
            preflight(
                source.url,
                recipe,
                coordinator=sampler.coordinator,
                key_list=source.key_list,
                sample=request.rank == 0,
                allow_bad=request.loader.on_bad_sample != "raise",
                notify=request.print_line,
            )
        except BaseException:
            # The caller has nothing to close yet.
            sampler.close()
            raise
    return dataset, sampler


class SuperReader:
    """A SUPER dataset with its sampler and loader, behind the interface of `DecodingLoader`."""

    resumes_within_epochs = True

    def __init__(
        self,
        dataset: SuperDataset,
        sampler: SuperSampler,
        batches: Iterable[Any],
        settings: Mapping[str, object],
    ) -> None:
        self._dataset = dataset
        self._sampler = sampler
        self._batches: Iterable[Any] | None = batches
        self.settings = settings
        self.classes: Sequence[str] = dataset.classes
        self.sample_count = len(dataset)
        self.set_epoch = sampler.set_epoch
        self.load_state_dict = sampler.load_state_dict
        self.job_stats = sampler.job_stats

    @property
    def bad_samples(self) -> Sequence[Any]:
        """The bad samples that were skipped or replaced."""
        return self._dataset.bad_samples

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the keys, versions (sizes and times for files), labels and classes."""
        return str(self._sampler.state_dict()["fingerprint"])

    def __len__(self) -> int:
        return len(self._sampler)

    def state_dict(self, batches: int) -> dict[str, Any]:
        """Return the position after ``batches`` batches of the latest iteration, as plain values."""
        # Only a SuperLoader counts batches whose samples are all bad.
        own_state = getattr(self._batches, "state_dict", None)
        return own_state() if own_state is not None else self._sampler.state_dict(batches_consumed=batches)

    def __iter__(self) -> Iterator[Batch]:
        if self._batches is None:
            raise RuntimeError("the loader is closed")
        return iter(self._batches)

    def close(self) -> None:
        """Stop the workers and the job. The loader cannot be used afterwards."""
        batches, self._batches = self._batches, None  # dropping the last reference ends the threads
        end_workers(batches)
        del batches
        self._sampler.close()
