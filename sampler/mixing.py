"""The sampler of a mix: one job per dataset, whose plans share out the slots of each batch.

The share of each dataset in a batch is a pure function in the coordinator. So the samplers of the datasets
have equally many batches and advance together, and each batch of the mix combines one of each.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.utils.data import Subset

from superdl.sampler.arguments import whole_number
from superdl.sampler.distributed import place_in_run
from superdl.sampler.drawing import shuffle_or_default
from superdl.sampler.registration import describe
from superdl.sampler.sampler import SuperSampler
from superdl.sampler.stateful_loader import sampler_state_in
from superdl.super_wire.batch_ref import MixedRef
from superdl.super_wire.errors import ConfigError, UsageError
from superdl.super_wire.ids import digest128

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.utils.data import ConcatDataset

    from superdl.sampler.plan_iterator import PlanIterator
    from superdl.sampler.stats import SamplerStats

__all__ = ["MixIterator", "MixSampler"]

_VERSION = 1
_SINGLE = {"indices", "weights", "repeats", "sampler", "batch_sampler"}
_BATCHINGS = ("mixed", "per_dataset")


class _Member(SuperSampler):
    """The sampler of one dataset of a mix."""

    def __init__(self, dataset: Any, *, mix: tuple[tuple[int, ...], int, int], **how: Any) -> None:
        self._mix = mix
        super().__init__(dataset, **how)


class MixSampler(SuperSampler):
    """The sampler that ``SuperSampler`` creates for a ``SuperMix`` or a ``ConcatDataset`` of SuperDatasets.

    ``samplers`` holds one sampler per dataset, in their order, each with its own job.

    Arguments beyond those of ``SuperSampler``:

    Args:
        draws: samples in an epoch of all datasets together, in the same proportions.
        batching: ``"mixed"``: every batch has its share of each dataset; ``"per_dataset"``: the batches that
            the ranks read at the same time come from one dataset, and every dataset has whole batches only.
    """

    def __init__(
        self,
        dataset: ConcatDataset[Any],
        *,
        batch_size: int,
        shuffle: bool | None = None,
        seed: int = 0,
        drop_last: bool = False,
        coordinator: str | None = None,
        in_order: bool = True,
        draws: int | None = None,
        batching: str = "mixed",
        **of_samplers: Any,
    ) -> None:
        shuffle = shuffle_or_default(shuffle=shuffle)
        refused = sorted(_SINGLE & of_samplers.keys())
        if refused or not in_order:
            raise ConfigError(
                f"a mix takes no {', '.join(refused) or 'in_order=False'}: its batches are put together of "
                "those of its datasets. Of a part of a dataset mix a Subset"
            )
        members: list[Any] = list(dataset.datasets)
        _look_at(members, coordinator)
        sizes = [len(member) for member in members]
        counts = tuple(getattr(dataset, "samples_of_each", tuple)(sizes))
        if batching not in _BATCHINGS:
            raise ConfigError(f"batching is one of {', '.join(_BATCHINGS)}; not {batching!r}")
        ranks = place_in_run(of_samplers.get("rank"), of_samplers.get("num_replicas"))[1]
        run = 1 if batching == "mixed" else whole_number("batch_size", batch_size, 1, 2**32) * ranks
        if draws is not None or run > 1:
            whole = sum(counts) if draws is None else whole_number("draws", draws, 1, 2**31)
            counts = tuple(run * count for count in _shared_out(max(1, whole // run), counts))
        options = {
            "batch_size": batch_size,
            "shuffle": shuffle,
            "drop_last": drop_last,
            "coordinator": coordinator,
            **of_samplers,
        }
        with ExitStack() as stack:
            self.samplers = tuple(
                stack.enter_context(
                    _Member(
                        member,
                        mix=(counts, number, run),
                        seed=_seed_of(seed, number),
                        **options,
                        **_drawn(size, count, shuffle=shuffle),
                    )
                )
                for number, (member, size, count) in enumerate(zip(members, sizes, counts, strict=True))
            )
            stack.pop_all()
        first = self.samplers[0]
        self.dataset = dataset
        self.rank, self.num_replicas = first.rank, first.num_replicas
        self.shuffle, self.seed, self.drop_last = shuffle, first.seed, drop_last
        self.num_samples, self.total_size, self.batch_size = (
            first.num_samples,
            first.total_size,
            first.batch_size,
        )
        self.counts = counts
        """Samples of each dataset in an epoch, over all ranks."""
        self._pid = os.getpid()

    @property
    def job(self) -> str:
        """Return the id of the first dataset's job; each of ``samplers`` has its own."""
        return self.samplers[0].job

    @property
    def kept(self) -> str:
        """Return the same as a SuperSampler's."""
        return self.samplers[0].kept

    @property
    def bad_samples(self) -> tuple[Any, ...]:
        """Return the bad samples of all its datasets."""
        wholes = {id(sampler.dataset): sampler for sampler in self.samplers}
        return tuple(bad for sampler in wholes.values() for bad in sampler.bad_samples)

    @property
    def epoch(self) -> int:  # type: ignore[override]  # what begins an iteration moves it on
        """Return the epoch that the next iteration begins."""
        return self.samplers[0].epoch

    def __len__(self) -> int:
        """Return the number of batches of this rank in an epoch."""
        return len(self.samplers[0])

    def __repr__(self) -> str:
        counts = " and ".join(f"{count:,}" for count in self.counts)
        return f"<SuperSampler of a mix of {counts} samples by {', '.join(map(repr, self.samplers))}>"

    def __iter__(self) -> MixIterator:  # type: ignore[override]  # its batches are mixed
        """Return a new pass over the next epoch; raises as a SuperSampler's."""
        return MixIterator([iter(sampler) for sampler in self.samplers])

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that the next iteration begins."""
        for sampler in self.samplers:
            sampler.set_epoch(epoch)

    def state_dict(self, batches_consumed: int | None = None) -> dict[str, Any]:
        """Return the position of training: the agreeing states of all samplers."""
        return _together([sampler.state_dict(batches_consumed) for sampler in self.samplers])

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next iteration begin at the place in ``state``; raises as a SuperSampler's."""
        self._check_process()
        states = self._states_in(sampler_state_in(state))
        for sampler, own in zip(self.samplers, states, strict=True):
            sampler.load_state_dict(own)

    def _states_in(self, state: Mapping[str, Any]) -> list[Any]:
        """Return the samplers' states; ``ConfigError`` if one does not fit."""
        states = _states_of(state, len(self.samplers))
        for sampler, own in zip(self.samplers, states, strict=True):
            sampler._checkpoint.place_in(own)  # noqa: SLF001 # of the same class
        return states

    def job_stats(self) -> SamplerStats:
        """Raise ``UsageError``, because each dataset has its own job."""
        raise UsageError("a mix has a job for each dataset: ask [s.job_stats() for s in sampler.samplers]")

    def close(self) -> None:
        """Close the jobs on this rank. Idempotent; iterating then fails."""
        for sampler in self.samplers:
            sampler.close()

    def close_soon(self) -> None:
        """Close the samplers in the background if this process made them. For finalizers."""
        for sampler in self.samplers:
            sampler.close_soon()


_APART = (
    "the samplers of this mix went apart: use sampler.set_epoch and load_state_dict of the mix, not of its "
    "samplers"
)

SuperSampler._of_several = MixSampler  # noqa: SLF001 # it says so


class MixIterator(Iterator[MixedRef]):
    """Iterator over batches of the mix, each from one batch per dataset; lazy until its first item."""

    def __init__(self, passes: Sequence[PlanIterator]) -> None:
        self._passes = passes
        self._taken: list[Any] = []  # parts of the next batch, until it is complete

    def __iter__(self) -> MixIterator:
        return self

    def __next__(self) -> MixedRef:
        if not self._taken:
            self._take_first()
        while len(self._taken) < len(self._passes):  # after an error, the next call resumes
            self._taken.append(next(self._passes[len(self._taken)]))
        taken, self._taken = self._taken, []
        if len({(ref.epoch, ref.position) for ref in taken}) > 1:
            raise UsageError(_APART)
        return MixedRef(tuple((number, ref) for number, ref in enumerate(taken) if len(ref)))

    def _take_first(self) -> None:
        try:
            self._taken.append(next(self._passes[0]))
        except StopIteration:
            # End the others too: one that never began would still be in this epoch.
            if any(next(own, None) is not None for own in self._passes[1:]):
                raise UsageError(_APART) from None
            raise

    @property
    def epoch(self) -> int:
        """Return the epoch of this pass."""
        return self._passes[-1].epoch

    @property
    def position(self) -> int:
        """Return the first position of the epoch that was not delivered yet."""
        return self._passes[-1].position

    def state_dict(self) -> dict[str, Any]:
        """Return the position of this pass as a state."""
        # If a batch could not be put together, the last pass has taken nothing of it.
        place = {"epoch": self.epoch, "position": self.position}
        return _together([own.state_dict() | place for own in self._passes])

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume the pass that produced ``state``; raises as a SuperSampler's iterator."""
        states = _states_of(state, len(self._passes))
        self._taken = []
        for own_pass, own_state in zip(self._passes, states, strict=True):
            own_pass.load_state_dict(own_state)

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            "an iterator of a SuperSampler holds a thread and cannot be pickled; its batches can"
        )


def _look_at(members: Sequence[Any], coordinator: str | None) -> None:
    """Make each dataset query its size, as a sampler created now will see it."""
    datasets = {}
    for member in members:
        dataset = member
        while isinstance(dataset, Subset):
            dataset = dataset.dataset
        if not hasattr(dataset, "bind"):
            raise UsageError(f"a mix is of SuperDatasets and Subsets of them; not {type(dataset).__name__}")
        datasets[id(dataset)] = dataset
    for dataset in datasets.values():
        if coordinator is not None:
            dataset.coordinator = coordinator
        dataset.bind(describe(dataset, renew=True))


def _drawn(size: int, count: int, *, shuffle: bool) -> dict[str, Any]:
    """Return arguments to draw ``count`` of ``size`` samples, each equally often."""
    if count == size:
        return {}
    if shuffle:
        return {"weights": torch.ones(size, dtype=torch.float64), "draws": count}
    return {"indices": torch.arange(count) % size}


def _shared_out(total: int, counts: Sequence[int]) -> list[int]:
    """Share out a number by counts, by largest remainders; each share is at least 1."""
    quotas = [divmod(total * count, sum(counts)) for count in counts]
    shares = [whole for whole, _ in quotas]
    by_remainder = sorted(range(len(counts)), key=lambda number: -quotas[number][1])
    for number in by_remainder[: total - sum(shares)]:
        shares[number] += 1
    if 0 in shares:
        raise ConfigError(
            f"an epoch would have nothing of dataset {shares.index(0)} of the mix: raise draws or its "
            "proportion, or lower batch_size"
        )
    return shares


def _seed_of(seed: int, number: int) -> int:
    """Return the seed of one dataset."""
    # With equal seeds, similar datasets of equal size would get the same order.
    if not number:
        return seed
    return int.from_bytes(digest128(str(seed).encode(), str(number).encode())[:8], "little", signed=True)


def _together(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"version": _VERSION, "mix": list(states)}


def _states_of(state: Mapping[str, Any], wanted: int) -> list[Any]:
    states = state.get("mix") if isinstance(state, Mapping) else None
    if not isinstance(states, list) or len(states) != wanted or state.get("version") != _VERSION:
        raise ConfigError(f"this is no state of a SuperSampler of a mix of {wanted} datasets")
    places = [(own.get("epoch"), own.get("position")) if isinstance(own, Mapping) else None for own in states]
    if any(place != places[0] for place in places):
        raise ConfigError("the states of this mix's samplers are of different places")
    return states
