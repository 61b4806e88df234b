"""The place of a loader that cannot seek: epochs that it began, and batches that were taken of the latest.

What such a loader is asked for in a resumed epoch it reads from the epoch's start, and the batches before
the place are dropped, which is said in the log; one that cannot have its order again refuses. SUPER's sampler
seeks, and has no use for this.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["CountedPlace"]

_log = logging.getLogger(__name__)
_FORMAT = "counted batches"


class CountedPlace:
    """Counts for one loader.

    Args:
        facts: what decides which samples a batch has, as plain values; equal where a state fits.
        tell: has the loader's next iteration be that of an epoch; None: it counts by itself, from 0.

    """

    def __init__(self, facts: Mapping[str, int], tell: Callable[[int], None] | None = None) -> None:
        self._facts = dict(facts)
        self._tell = tell
        self._epoch = 0  # of the next iteration
        self._batch = 0  # where it begins
        self._begun = 0  # iterations
        self._began_at = (0, 0)  # the latest one, epoch and batch

    @property
    def resumes_within_epochs(self) -> bool:
        """Whether the order of an epoch can be had again, whatever was iterated before."""
        return self._tell is not None

    def set_epoch(self, epoch: int) -> None:
        """Make ``epoch`` the next; a batch in it that a state named stays."""
        if epoch != self._epoch:
            self._epoch, self._batch = epoch, 0

    def state_dict(self, batches: int) -> dict[str, Any]:
        """The place after so many batches of the latest iteration."""
        epoch, batch = self._began_at
        return {"format": _FORMAT, **self._facts, "epoch": epoch, "batch": batch + batches}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Begin the next iteration at ``state``.

        Raises:
            ConfigError: it is another loader's, of other samples or batches, or of the middle of an epoch,
                whose order this loader cannot have again.

        """
        if state.get("format") != _FORMAT:
            raise ConfigError(
                "the loader's state is of a loader of another kind: set loader.kind as it was, or resume "
                "from the end of an epoch"
            )
        differ = [
            f"{name} is {state.get(name)} in the state and {value} here"
            for name, value in self._facts.items()
            if state.get(name) != value
        ]
        if differ:
            raise ConfigError(f"the loader's state is of other batches: {'; '.join(differ)}")
        if int(state["batch"]) and not self.resumes_within_epochs:
            raise ConfigError(
                "this loader cannot go on in the middle of an epoch, since it would repeat samples and leave "
                "others out: resume from a checkpoint of the end of an epoch (training.checkpoint_every)"
            )
        self._epoch, self._batch = int(state["epoch"]), int(state["batch"])

    def begin(self) -> int:
        """Begin the next iteration; returns how many of its batches are to be dropped."""
        epoch, batch = self._epoch, self._batch
        if self._tell is not None:
            self._tell(epoch)
        elif epoch != self._begun:
            _log.warning(
                "this loader cannot begin at epoch %d: its order is that of epoch %d", epoch, self._begun
            )
        if batch:
            _log.warning(
                "this loader cannot seek: %d batches of epoch %d are read again and dropped", batch, epoch
            )
        self._began_at = (epoch, batch)
        self._begun += 1
        self._epoch, self._batch = epoch + 1, 0
        return batch
