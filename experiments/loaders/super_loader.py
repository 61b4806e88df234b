"""SUPER itself, through its public names only, as a user would write it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from superdl.experiments.loaders.workers import end_workers, leave_sigterm_to_the_run

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from superdl.experiments.loaders.interface import Batch, Loader, LoaderRequest
    from superdl.experiments.records import LoaderStats
    from superdl.experiments.spec import RecipeSpec
    from superdl.sampler import SuperSampler
    from superdl.super_dataset import Recipe, SuperDataset

__all__ = ["open_super", "open_super_threads"]


def open_super(request: LoaderRequest) -> Loader:
    """Open a split through the coordinator that the spec names, else the default one."""
    dataset, sampler = _open(request)
    options = {"batch_size": None, **request.worker_options()}
    batches: DataLoader[Any] = DataLoader(
        dataset, sampler=sampler, worker_init_fn=leave_sigterm_to_the_run, **options
    )
    return _SuperLoader(dataset, sampler, batches, options)


def open_super_threads(request: LoaderRequest) -> Loader:
    """The same by threads of this process; ``num_workers`` of the spec has no part in it."""
    from superdl.super_dataset import SuperLoader

    dataset, sampler = _open(request)
    device = "cuda" if request.pin_memory else None
    return _SuperLoader(dataset, sampler, SuperLoader(dataset, sampler, device), {"device": device})


def _open(request: LoaderRequest) -> tuple[SuperDataset, SuperSampler]:
    from superdl.sampler import SuperSampler  # a run with another loader needs neither
    from superdl.super_dataset import SuperDataset

    dataset = SuperDataset(
        request.source.url,
        recipe=_recipe(request.recipe),
        key_list=request.source.key_list,
        return_info=True,
        read_timeout=request.loader.read_timeout,
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
    return dataset, sampler


def _recipe(spec: RecipeSpec) -> Recipe:
    from superdl.super_dataset import Recipe

    if spec.steps is None:
        return Recipe.image(resize=spec.resize, crop=spec.crop)
    return Recipe(spec.steps, augment_seed=spec.augment_seed)


class _SuperLoader:
    """A dataset, its sampler and the loader over both."""

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
        self._settings = settings

    @property
    def classes(self) -> Sequence[str]:
        return self._dataset.classes

    @property
    def sample_count(self) -> int:
        return len(self._dataset)

    @property
    def settings(self) -> Mapping[str, object]:
        return {**self._settings, "documentation": "README.md"}

    @property
    def fingerprint(self) -> str:
        return str(self._sampler.state_dict()["fingerprint"])

    @property
    def resumes_within_epochs(self) -> bool:
        return True

    def __len__(self) -> int:
        return len(self._sampler)

    def set_epoch(self, epoch: int) -> None:
        self._sampler.set_epoch(epoch)

    def state_dict(self, batches: int) -> dict[str, Any]:
        return self._sampler.state_dict(batches_consumed=batches)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._sampler.load_state_dict(state)

    def __iter__(self) -> Iterator[Batch]:
        if self._batches is None:
            raise RuntimeError("the loader is closed")
        return iter(self._batches)

    def job_stats(self) -> LoaderStats:
        return self._sampler.job_stats()

    def close(self) -> None:
        batches, self._batches = self._batches, None  # the last reference: threads end with it
        end_workers(batches)
        del batches
        self._sampler.close()
