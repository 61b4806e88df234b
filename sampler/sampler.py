"""``SuperSampler``: a torch ``Sampler`` whose items are planned batches."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NoReturn, Self

from torch.utils.data import ConcatDataset
from torch.utils.data.distributed import DistributedSampler

from superdl.sampler.arguments import (
    described,
    described_mix,
    samples_of_a_rank,
    shuffle_or_default,
    whole_number,
)
from superdl.sampler.checkpoint import check_workers, sampler_state_in
from superdl.sampler.distributed import check_rank, check_schedules
from superdl.sampler.parts import Part, Parts, PlanIterator, check_process, in_background
from superdl.sampler.prefetch import Cursor
from superdl.super_wire.batch_ref import BatchRef
from superdl.super_wire.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from types import TracebackType

    from torch.utils.data import Subset

    from superdl.sampler.stats import SamplerStats
    from superdl.super_wire.batch_ref import Bindable

_INT64 = 2**63


class SuperSampler(DistributedSampler[BatchRef]):
    """Sampler of whole batches of a dataset, for ``DataLoader(dataset, sampler=sampler, batch_size=None)``.

    It is a ``DistributedSampler``: each rank gets its own part of the epoch, and frameworks (Lightning, Ray
    Train) do not replace such a sampler. Creating it registers the dataset, waits until the source is listed,
    opens the job and pings the cache. Outside a launched run, a new sampler lists the source again, to find
    added files, if the listing is older than ten times its duration. Each new iteration is the
    next epoch. The sampler and its iterators have ``state_dict`` and ``load_state_dict`` for torchdata's
    StatefulDataLoader.

    >>> dataset = SuperDataset("images", Recipe.image(resize=32, crop=32))
    >>> sampler = SuperSampler(dataset, batch_size=4, shuffle=True, seed=0)
    >>> len(dataset), dataset.classes, len(sampler)  # samples, classes, batches
    (8, ('ant', 'bee', 'cat', 'dog'), 2)
    >>> sampler.num_samples, sampler.total_size  # samples of this rank, of all ranks
    (8, 8)
    >>> loader = DataLoader(dataset, sampler=sampler, batch_size=None)
    >>> [tuple(images.shape) for images, labels in loader]
    [(4, 3, 32, 32), (4, 3, 32, 32)]
    >>> sampler.epoch
    1
    >>> sampler.close()

    Args:
        dataset: a ``SuperDataset``, or a ``Subset`` of one; it receives the coordinator's description of the
            source. For a ``SuperMix``, or a ``ConcatDataset`` of SuperDatasets, batches are mixed, with one
            job per dataset.
        batch_size: samples per batch on this rank.
        shuffle: whether each epoch has its own order. By default, as in a DataLoader, epochs keep the
            catalog's order.
        seed: the seed of the shuffle, a signed 64-bit integer.
        drop_last: whether to drop the short last global batch. Otherwise it is padded to a multiple of
            the number of ranks, and the padding is flagged.
        rank: the rank of this process; default: torch.distributed's, else ``RANK``, else 0.
        num_replicas: total number of ranks; default: torch.distributed's, else ``WORLD_SIZE``, else 1.
        coordinator: ``host:port`` or ``unix:/path``; default: the dataset's, else ``SUPER_COORDINATOR``, else
            an embedded one is started. Its functions run in a pool on this host or, if
            ``SUPER_EXECUTOR=lambda``, on AWS Lambda, which needs ``SUPER_CACHE``, a cache that they can
            reach. Other coordinators have their own settings.
        job: replaces the run id in the job's identity, so that several launches can share one job. With your
            own ``sampler``, each rank of each launch has its own.
        in_order: ``False`` lets a batch that is ready overtake up to seven earlier ones that are not.
        indices: restrict an epoch to these samples, given as indices into ``dataset.samples``. Repeated
            indices are delivered repeatedly. Unless shuffled, the samples keep this order. A
            ``SubsetRandomSampler``, or a ``Subset`` instead of the dataset, works too.
        weights: draw samples in proportion to these, one per sample (or per index); needs ``shuffle``. Each
            sample is drawn as often as expected, randomly rounded up or down. A ``WeightedRandomSampler``
            works too.
        draws: number of samples that weights draw in an epoch; default: the number of weights. For a mix, the
            number of samples of all datasets in an epoch, in the same proportions.
        sampler: any object that yields indices each time it is iterated, such as one of torch's samplers or
            your own. It defines the epoch instead of ``shuffle``, ``indices``, ``weights``, ``draws`` and
            ``repeats``. It is drawn in this process when an epoch begins, after its ``set_epoch`` if it has
            one, and is part of the state. Each rank draws from its own, so pass a distributed one.
        batch_sampler: the same for an object that yields lists of indices, one per batch; lengths may differ.
            It replaces ``batch_size`` and ``drop_last`` too.
        repeats: number of times that each drawn sample is delivered in an epoch, on different ranks if there
            are several (repeated augmentation). The epoch grows by this factor; equal weights with fewer
            ``draws`` keep its length. Random transforms differ each time, but random steps of the recipe,
            which are cached, do not.
        batching: how a mix fills its batches. With ``"mixed"``, every batch contains its share of each
            dataset. With ``"per_dataset"``, the batches that the ranks read at the same time are from one
            dataset, and every dataset contributes whole batches only.

    Raises:
        ConfigError: an argument is invalid.
        PlanError: an epoch would have no batches.
        UsageError: ``dataset`` is not a SuperDataset.
        SourceError: the source is missing, empty, forbidden, or its listing makes no progress.
        CoordinatorUnreachableError, ProtocolMismatchError, EmbeddedError: no coordinator can be reached,
            understood or started.
        CoordinatorTrustError: its certificate is not trusted, or it rejects this client's token.
        CacheError: the cache does not answer, or refuses the connection.
    """

    def __init__(  # noqa: PLR0913 # an epoch has many parameters
        self,
        dataset: Bindable | Subset[Any] | ConcatDataset[Any],
        *,
        batch_size: int | None = None,
        shuffle: bool | None = None,
        seed: int = 0,
        drop_last: bool = False,
        rank: int | None = None,
        num_replicas: int | None = None,
        coordinator: str | None = None,
        job: str | None = None,
        in_order: bool = True,
        indices: Any = None,
        weights: Any = None,
        draws: int | None = None,
        repeats: int = 1,
        sampler: Iterable[int] | None = None,
        batch_sampler: Iterable[Sequence[int]] | None = None,
        batching: str = "mixed",
    ) -> None:
        if not isinstance(in_order, bool):
            raise ConfigError(f"in_order must be True or False, not {in_order!r}")
        if job is not None and (not isinstance(job, str) or not job):
            raise ConfigError(f"job must be a non-empty string, not {job!r}")
        self.shuffle = shuffle_or_default(
            shuffle=shuffle, given=sampler is not None or batch_sampler is not None
        )
        arguments: dict[str, Any] = {
            "batch_size": batch_size,
            "shuffle": self.shuffle,
            "seed": seed,
            "drop_last": drop_last,
            "rank": rank,
            "num_replicas": num_replicas,
            "indices": indices,
            "weights": weights,
            "draws": draws,
            "repeats": repeats,
            "sampler": sampler,
            "batch_sampler": batch_sampler,
        }
        mixes = isinstance(dataset, ConcatDataset)
        if isinstance(dataset, ConcatDataset):
            if not in_order:
                raise ConfigError("a mix cannot use in_order=False, since its datasets advance together")
            plans = described_mix(dataset, coordinator=coordinator, batching=batching, **arguments)
        elif batching != "mixed":
            raise ConfigError("batching only applies to a mix of datasets: omit it")
        else:
            plans = [described(dataset, **arguments)]
        # If a part fails, the jobs of those before it are closed.
        with ExitStack() as stack:
            parts = []
            for plan in plans:
                parts.append(Part(plan, coordinator=coordinator, job=job, in_order=in_order))
                stack.callback(parts[-1].close)
            stack.pop_all()
        self.parts = Parts(parts, mixes=mixes)
        """One part, or for a mix one per dataset, each with its own ``job`` and ``job_stats()``."""
        self._by_default = (rank is None, num_replicas is None)
        self._cursor = Cursor()
        # Attributes of a DistributedSampler that frameworks read; its __init__ counts differently.
        spec, size = plans[0].spec, parts[0].size
        self.dataset: Any = dataset if mixes else plans[0].dataset
        # The dataset or Subset that was passed.
        self.given_dataset: Any = dataset
        self.rank, self.num_replicas = plans[0].rank, plans[0].num_replicas
        self.seed, self.drop_last = spec.seed, drop_last
        self.num_samples = samples_of_a_rank(spec.length(size), spec)
        """Samples of this rank in an epoch, including padding. ``len()`` counts batches."""
        self.total_size = self.num_samples * self.num_replicas
        """Samples of all ranks in an epoch, including padding."""
        self.batch_size = spec.batch_size
        """Samples per batch on this rank."""
        self.counts = spec.mix or (spec.length(size),)
        """Samples of each dataset in an epoch, over all ranks, without padding. Not known if you passed your
        own sampler.
        """
        self._pid = os.getpid()
        self._closed = False

    @property
    def coordinator(self) -> str:
        """Return the address of the coordinator, which may be embedded."""
        return self.parts[0].coordinator

    @property
    def job(self) -> str:
        """Return the job's id, 32 hex digits, the same on all ranks. For a mix, it is the first job's."""
        return self.parts[0].job

    @property
    def kept(self) -> str:
        """Return a message for users about where decoded records are kept and how full that was at the start.

        If there is no store, the message is empty.
        """
        return self.parts[0].session.kept

    @property
    def bad_samples(self) -> tuple[Any, ...]:
        """Return the bad samples that were skipped or replaced so far; see :class:`SuperDataset`."""
        datasets = {id(part.dataset): part.dataset for part in self.parts}.values()
        return tuple(bad for dataset in datasets for bad in dataset.bad_samples)

    @property
    def epoch(self) -> int:  # type: ignore[override]  # each iteration advances it
        """Return the epoch that the next iteration begins."""
        return self._cursor.peek().epoch

    def __len__(self) -> int:
        """Return the number of this rank's batches in an epoch. ``num_samples`` counts samples."""
        return len(self.parts[0])

    def __repr__(self) -> str:
        return (
            f"<SuperSampler of {' mixed with '.join(map(repr, self.parts))}, shuffle={self.shuffle}, "
            f"seed={self.seed}, drop_last={self.drop_last}, rank {self.rank} of {self.num_replicas}, next "
            f"epoch {self.epoch}>"
        )

    def __iter__(self) -> PlanIterator:
        """Return a new pass over the next epoch, which begins when its first batch is requested.

        Raises:
            ConfigError: a StatefulDataLoader would load a state from a different number of workers.
            UsageError: this is not the process or the rank that the sampler was created for, or Accelerate
                would step the learning-rate schedule once per rank.
        """
        check_process(self._pid)
        check_workers()
        check_rank(self.rank, self.num_replicas, by_default=self._by_default)
        if self.shuffle:  # only if training
            check_schedules(self.num_replicas)
        return PlanIterator(self._cursor, self.parts)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that the next iteration begins. A position loaded in that epoch is kept."""
        self._cursor.set_epoch(whole_number("epoch", epoch, 0, _INT64))

    def state_dict(self, batches_consumed: int | None = None) -> dict[str, Any]:
        """Return the position of training as a small JSON-compatible dict. A sampler that loads it resumes
        there with its next iteration.

        Args:
            batches_consumed: the number of batches that the training loop has received in the latest
                iteration, even if that was resumed mid-epoch. It is needed with a plain DataLoader with
                workers, which has requested more. After the last batch of an epoch, the state is the epoch's
                end, and an iteration that begins there ends immediately. Use ``None`` between iterations, or
                with a loader that also saves the iterator's state (torchdata's StatefulDataLoader).

        Raises:
            ConfigError: no iteration has delivered that many batches.
        """
        if batches_consumed is None:
            return self.parts.state_of(self._cursor.peek())
        count = whole_number("batches_consumed", batches_consumed, 0, _INT64)
        delivered = self.parts[-1].pager.delivered()  # the last one that a mixed batch is taken from
        if count == 0 and delivered is None:
            return self.parts.state_of(self._cursor.peek())
        if delivered is None or count > delivered.count:
            known = "no iteration has begun"
            if delivered is not None:
                known = f"the latest iteration delivered {delivered.count}"
            raise ConfigError(
                f"batches_consumed={count}, but {known}: pass the number of batches that the training loop "
                "has received from its loader since iter(loader), even if that was resumed mid-epoch"
            )
        return self.parts.state_of(delivered.position_after(count))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next iteration begin at the position in ``state``, in constant time.

        The first page is requested immediately in the background. Iterations in progress continue
        undisturbed. The state may be from another rank, or from another number of ranks if ``batch_size``
        times ranks is the same. A StatefulDataLoader's state works too, whatever its number of workers.

        Raises:
            ConfigError: the state belongs to another plan; the message lists the differences.
            UsageError: this is not the process that created the sampler, or the sampler is closed.
        """
        check_process(self._pid)
        start = self.parts.position_in(sampler_state_in(state))
        self.parts.prepare(start)
        self._cursor.move(start)

    def job_stats(self) -> SamplerStats:
        """Return the coordinator's counters for this job, over all ranks, and the cost of this process's
        calls for pages.

        Raises:
            UsageError: the sampler is of a mix, which has one job per dataset.
        """
        if self.parts.mixes:
            raise UsageError("a mix has one job per dataset: use [p.job_stats() for p in sampler.parts]")
        return self.parts[0].job_stats()

    def close(self) -> None:
        """Close the job on this rank and stop the thread. Idempotent. Iterating then fails."""
        if self._closed:
            return
        self._closed = True
        for part in self.parts:
            part.close()

    def close_soon(self) -> None:
        """Close the sampler in the background if this process created it. For finalizers."""
        if self._pid == os.getpid() and not self._closed:
            in_background(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            "a SuperSampler uses a thread and a connection and cannot be pickled or copied: create one in "
            "each process"
        )
