"""The opened loader whose workers decode, and where it stands: epochs begun, batches taken of the latest.

Such a loader cannot seek. In a resumed epoch it reads from the epoch's start and drops the batches before the
place, which the log says; one that cannot have its order again refuses. SUPER's sampler seeks, and has no use
for this.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from superdl.experiments.loaders.workers import end_workers
from superdl.experiments.records import LoaderCounters
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch.utils.data import DataLoader

    from superdl.experiments.loaders.interface import Batch
    from superdl.experiments.loaders.samples import Samples
    from superdl.experiments.loaders.workers import WorkerFigures

__all__ = ["CountedPlace", "DecodingLoader"]

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


def _last_is_padding(figures: WorkerFigures, samples: int) -> WorkerFigures:
    padding = np.zeros(samples, dtype=np.bool_)
    padding[-1] = True
    return replace(figures, padding=padding)


class DecodingLoader:
    """A DataLoader whose workers decode; what they decode is counted as a job's functions are.

    Args:
        batches: gives the batches of an epoch, those of one rank, each time it is iterated.
        length: how many there are.
        samples: those of the split, all ranks together.
        settings: what it was opened with, for the report.
        tell_epoch: has the next iteration of ``batches`` be that of an epoch; None: they count from 0.
        pads: whether this rank's last sample is only there to make ranks equally long.
        requests: for each sample it makes, those to a bucket, which are billed.

    """

    def __init__(
        self,
        batches: DataLoader[Any],
        *,
        length: int,
        samples: Samples,
        settings: Mapping[str, object],
        tell_epoch: Callable[[int], None] | None = None,
        pads: bool = False,
        requests: int = 0,
    ) -> None:
        self._place = CountedPlace({"samples": len(samples), "batches": length}, tell_epoch)
        self._pads = pads
        self._requests = requests
        self._batches: DataLoader[Any] | None = batches
        self._length = length
        self._split = samples
        self._settings = settings
        self._fetch_s = 0.0
        self._decode_s = 0.0
        self._samples = 0

    @property
    def classes(self) -> Sequence[str]:
        """The names of the classes."""
        return self._split.classes

    @property
    def sample_count(self) -> int:
        """How many samples the split has."""
        return len(self._split)

    @property
    def settings(self) -> Mapping[str, object]:
        """What it was opened with."""
        return self._settings

    @property
    def fingerprint(self) -> str:
        """Of the listing."""
        return self._split.fingerprint.hex()

    @property
    def resumes_within_epochs(self) -> bool:
        """Whether it can begin at the epoch, whose first batches are then dropped."""
        return self._place.resumes_within_epochs

    def __len__(self) -> int:
        """How many batches an epoch has; none once it is closed."""
        return 0 if self._batches is None else self._length

    def set_epoch(self, epoch: int) -> None:
        """Make ``epoch`` the next."""
        self._place.set_epoch(epoch)

    def state_dict(self, batches: int) -> dict[str, Any]:
        """The place after so many batches of the latest iteration."""
        return self._place.state_dict(batches)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Begin the next iteration at ``state``."""
        self._place.load_state_dict(state)

    def __iter__(self) -> Iterator[Batch]:
        """Begin the next epoch."""
        if self._batches is None:
            raise RuntimeError("the loader is closed")
        dropped = self._place.begin()
        for count, (images, labels, figures) in enumerate(self._batches, 1):
            self._fetch_s += figures.fetch_s
            self._decode_s += figures.decode_s
            self._samples += len(labels)
            if count <= dropped:
                continue
            last = self._pads and count == self._length
            yield images, labels, _last_is_padding(figures, len(labels)) if last else figures

    def job_stats(self) -> LoaderCounters:
        """What was decoded until now."""
        return LoaderCounters(
            fetch_s=self._fetch_s,
            decode_s=self._decode_s,
            samples_produced=self._samples,
            source_requests=self._requests * self._samples,
        )

    def close(self) -> None:
        """End the workers at once: those of a loader in a reference cycle the collector would end badly."""
        batches, self._batches = self._batches, None
        end_workers(batches)
