"""SUPER's plan as a batch sampler for other loaders, so that both train on equal batches in equal order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.utils.data import Sampler

from superdl.coordinator.core.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["PlannedOrder"]


class PlannedOrder(Sampler[list[int]]):
    """Each iteration is the next epoch of the plan that a shuffled SuperSampler of one rank follows.

    Indices are of the images sorted by key, as the catalog has them.
    """

    def __init__(self, size: int, batch_size: int, seed: int) -> None:
        self._plan = Plan(size=size, batch_size=batch_size, seed=seed, shuffle=True)
        self._epoch = 0

    def __len__(self) -> int:
        return self._plan.batches_per_epoch

    def __iter__(self) -> Iterator[list[int]]:
        # A generator: a DataLoader that makes two iterators and uses one begins one epoch.
        epoch, self._epoch = self._epoch, self._epoch + 1
        for position in range(len(self)):
            yield self._plan.batch(epoch, position, 0).indices.tolist()
