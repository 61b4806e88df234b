"""The batches of one epoch's steps: as many on each rank, from a loader that may have to begin again.

What is done with them is left to `experiments.training.loop`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from superdl.experiments.loaders.interface import Batch, Loader
    from superdl.experiments.ranks import Ranks

__all__ = ["Batches"]


class Batches:
    """The steps of an epoch over one loader, and where it stands."""

    def __init__(
        self, loader: Loader, split: str, ranks: Ranks, steps: int | None = None, *, passes: int = 0
    ) -> None:
        """Agree with the other ranks on the number of steps: ``steps``, else the least that a rank has.

        ``passes`` of the loader count as done.
        """
        self._loader = loader
        self._split = split
        self._again = steps is not None
        self._resumed = False  # a state was loaded, which the next epoch begins with
        if steps is None:
            steps = int(ranks.smallest([len(loader)])[0])
        self.steps = steps
        self.step = 0
        """How many of the epoch have been given out."""
        self._passes = passes  # of the loader, that have begun
        self._given = 0  # batches of the latest one
        self._iterator: Iterator[Batch] | None = None

    @property
    def resumable(self) -> bool:
        """Whether the present place is one to go on from, with neither repeated nor missing samples."""
        return self.step in (0, self.steps) or self.orders_can_be_had_again

    @property
    def orders_can_be_had_again(self) -> bool:
        """Whether the loader can begin at any epoch."""
        return self._loader.resumes_within_epochs

    def begin(self) -> None:
        """Begin an epoch, unless a state in it was loaded: that is gone on with."""
        if not self._resumed:
            self.step = 0
        self._resumed = False
        self._iterator = None

    def state_dict(self, *, over: bool = False) -> dict[str, Any]:
        """The place after the batch that was given out last; the begin of the next epoch if this one is over,
        validation included.
        """
        if over or self.step in (0, self.steps):
            return {"step": 0 if over else self.step, "pass": self._passes, "loader": None}
        return {"step": self.step, "pass": self._passes - 1, "loader": self._loader.state_dict(self._given)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on at a place; see `Loader.load_state_dict`."""
        self.step, self._passes = int(state["step"]), int(state["pass"])
        self._resumed = True
        if state["loader"] is not None:
            self._loader.load_state_dict(state["loader"])

    def next(self) -> Batch | None:
        """The next step's batch; None after the last.

        Raises:
            ConfigError: the loader has ended before its length, or with no batch at all.

        """
        if self.step == self.steps:
            return None
        batch = self._begin() if self._iterator is None else next(self._iterator, None)
        if batch is None and self._again:
            batch = self._begin()
        if batch is None:
            raise ConfigError(
                f"the loader of {self._split} ended after {self.step} batches, and {self.steps} were to come"
            )
        self.step += 1
        self._given += 1
        return batch

    def _begin(self) -> Batch | None:
        """Have the loader begin a pass; what it draws by chance is drawn from a copy of torch's state."""
        self._loader.set_epoch(self._passes)
        self._passes += 1
        self._given = 0
        with torch.random.fork_rng(devices=[]):
            self._iterator = iter(self._loader)
            return next(self._iterator, None)
