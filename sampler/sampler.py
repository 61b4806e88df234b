"""``SuperSampler``: a torch ``Sampler`` that yields planned batches."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NoReturn, Self

from torch.utils.data import ConcatDataset
from torch.utils.data.distributed import DistributedSampler

from superdl.sampler.arguments import (
    checked_int,
    resolve_shuffle,
    samples_per_rank,
    validate,
    validate_mix,
)
from superdl.sampler.checkpoint import extract_sampler_state
from superdl.sampler.distributed import check_rank, check_schedules
from superdl.sampler.parts import Part, Parts, PlanIterator, check_process
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
    """A sampler that yields whole batches, for ``DataLoader(dataset, sampler=sampler, batch_size=None)``.

    It is a ``DistributedSampler``, so each rank gets its own part of the epoch, and frameworks such as
    Lightning and Ray Train do not replace it. Each iteration runs the next epoch. The sampler and its
    iterators have ``state_dict`` and ``load_state_dict`` for torchdata's StatefulDataLoader.

    Creating a sampler registers the dataset, waits for the source to be listed, opens a job and pings the
    cache. Outside a launched run, a listing is repeated to find new files once it is older than ten times
    its duration.

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
        dataset: a ``SuperDataset`` or a ``Subset`` of one, which is bound to the coordinator's listing. A
            ``SuperMix``, or a ``ConcatDataset`` of SuperDatasets, yields mixed batches, with one job per
            dataset.
        batch_size: samples per batch on this rank.
        shuffle: whether to reshuffle every epoch. The default, as in a DataLoader, is to keep the
            catalog's order.
        seed: shuffle seed, a signed 64-bit integer.
        drop_last: whether to drop the incomplete last global batch. Otherwise it is padded to a multiple of
            the number of ranks, and the padding is flagged.
        rank: this process's rank. Defaults to torch.distributed's, else ``RANK``, else 0.
        num_replicas: number of ranks. Defaults to torch.distributed's, else ``WORLD_SIZE``, else 1.
        coordinator: ``host:port`` or ``unix:/path``. Defaults to the dataset's, else ``SUPER_COORDINATOR``.
            Otherwise an embedded coordinator is started. Its functions run in a pool on this host or, with
            ``SUPER_EXECUTOR=lambda``, on AWS Lambda, which requires ``SUPER_CACHE``, a cache that Lambda can
            reach. Other coordinators have their own settings.
        job: a name that replaces the run id, to share one job between launches. With your own ``sampler``,
            each rank of each launch has a separate job anyway.
        in_order: if ``False``, a batch that is ready may overtake up to seven earlier ones that are not.
        indices: restrict an epoch to these samples, given as indices into ``dataset.samples``. Repeated
            indices are delivered repeatedly, and their order is kept unless shuffled. A
            ``SubsetRandomSampler``, or a ``Subset`` in place of the dataset, works too.
        weights: one weight per sample (or per index). Samples are drawn in proportion to their weights.
            Requires ``shuffle``. Each sample is drawn its expected number of times, randomly rounded up or
            down. A ``WeightedRandomSampler`` works too.
        draws: number of samples to draw by weight per epoch. Defaults to the number of weights. For a mix,
            this is the total number of samples per epoch, and the proportions stay the same.
        sampler: any iterable of indices, such as a torch sampler or your own. It defines the epoch in place
            of ``shuffle``, ``indices``, ``weights``, ``draws`` and ``repeats``. This process iterates it at
            the start of an epoch, after calling its ``set_epoch`` if it has one, and includes it in the
            state. Each rank iterates its own sampler, so pass a distributed one.
        batch_sampler: the same for an iterable of index lists, one per batch, which may differ in length. It
            also replaces ``batch_size`` and ``drop_last``.
        repeats: how often to deliver each drawn sample per epoch, on different ranks if there are several
            (repeated augmentation). The epoch grows by this factor, unless equal weights with fewer
            ``draws`` keep its length. Random transforms differ each time. Random recipe steps do not, since
            their results are cached.
        batching: how a mix fills its batches. With ``"mixed"``, each batch contains a share of every
            dataset. With ``"per_dataset"``, the batches that ranks read at the same time come from the same
            dataset, and every dataset contributes only full batches.

    Raises:
        ConfigError: an argument is invalid.
        PlanError: an epoch would have no batches.
        UsageError: ``dataset`` is not a SuperDataset.
        SourceError: the source is missing, empty or forbidden, or its listing makes no progress.
        CoordinatorUnreachableError: no coordinator answered in time.
        ProtocolMismatchError: the coordinator has an incompatible version.
        EmbeddedError: the embedded coordinator did not start.
        CoordinatorTrustError: the coordinator's certificate is not trusted, or it rejects this client's
            token.
        CacheError: the cache did not respond or refused the connection.
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
        self.shuffle = resolve_shuffle(
            shuffle=shuffle, has_order=sampler is not None or batch_sampler is not None
        )
        options: dict[str, Any] = {
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
                raise ConfigError("a mix cannot use in_order=False because its datasets advance together")
            members = validate_mix(dataset, coordinator=coordinator, batching=batching, **options)
        elif batching != "mixed":
            raise ConfigError("batching only applies to a mix of datasets. Omit it")
        else:
            members = [validate(dataset, **options)]
        # If a part fails, close the jobs opened before it.
        with ExitStack() as stack:
            parts = []
            for arguments in members:
                parts.append(Part(arguments, coordinator=coordinator, job=job, in_order=in_order))
                stack.callback(parts[-1].close)
            stack.pop_all()
        self.parts = Parts(parts, mixes=mixes)
        """The sampler's parts: one, or one per dataset of a mix. Each has ``job`` and ``job_stats()``."""
        self._by_default = (rank is None, num_replicas is None)
        self._cursor = Cursor()
        # DistributedSampler attributes that frameworks read. Its __init__ would count differently.
        first, size = members[0], parts[0].size
        spec = first.spec
        self.dataset: Any = dataset if mixes else first.dataset
        self.given_dataset: Any = dataset  # as passed, perhaps a Subset
        self.rank, self.num_replicas = first.rank, first.num_replicas
        self.seed, self.drop_last = spec.seed, drop_last
        self.num_samples = samples_per_rank(spec.length(size), spec)
        """Samples per epoch on this rank, including padding. ``len()`` counts batches."""
        self.total_size = self.num_samples * self.num_replicas
        """Samples per epoch on all ranks, including padding."""
        self.batch_size = spec.batch_size
        """Samples per batch on this rank."""
        self.counts = spec.mix or (spec.length(size),)
        """Samples per epoch of each dataset, over all ranks, without padding. Not known with ``sampler=``."""
        self._pid = os.getpid()
        self._closed = False

    @property
    def coordinator(self) -> str:
        """Return the coordinator's address, which may be that of an embedded coordinator."""
        return self.parts[0].coordinator

    @property
    def job(self) -> str:
        """Return the job id (32 hex digits), which all ranks share. For a mix, it is the first job's."""
        return self.parts[0].job

    @property
    def kept(self) -> str:
        """Return where the store keeps decoded records and how full it was at startup, as a message.

        The message is empty without a store.
        """
        return self.parts[0].session.kept

    @property
    def bad_samples(self) -> tuple[Any, ...]:
        """Return the bad samples skipped or replaced so far; see :class:`SuperDataset`."""
        datasets = {id(part.dataset): part.dataset for part in self.parts}.values()
        return tuple(bad for dataset in datasets for bad in dataset.bad_samples)

    @property
    def epoch(self) -> int:  # type: ignore[override]  # each iteration advances it
        """Return the epoch of the next iteration."""
        return self._cursor.peek().epoch

    def __len__(self) -> int:
        """Return the number of batches per epoch on this rank. ``num_samples`` counts samples."""
        return len(self.parts[0])

    def __repr__(self) -> str:
        return (
            f"<SuperSampler of {' mixed with '.join(map(repr, self.parts))}, shuffle={self.shuffle}, "
            f"seed={self.seed}, drop_last={self.drop_last}, rank {self.rank} of {self.num_replicas}, next "
            f"epoch {self.epoch}>"
        )

    def __iter__(self) -> PlanIterator:
        """Return an iterator over the next epoch, which begins when the first batch is requested.

        Raises:
            UsageError: this is not the process or rank that the sampler was created for, or Accelerate
                would step the learning-rate schedule once per rank.
        """
        check_process(self._pid)
        check_rank(self.rank, self.num_replicas, by_default=self._by_default)
        if self.shuffle:  # only when training
            check_schedules(self.num_replicas)
        return PlanIterator(self._cursor, self.parts)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration. A position loaded for that epoch is kept."""
        self._cursor.set_epoch(checked_int("epoch", epoch, 0, _INT64))

    def state_dict(self, batches_consumed: int | None = None) -> dict[str, Any]:
        """Return the training position as a small JSON-compatible dict. A sampler that loads it resumes there
        in its next iteration.

        Args:
            batches_consumed: number of batches that the training loop has received in the latest iteration,
                even if that iteration was resumed mid-epoch. A plain DataLoader with workers requires it,
                because it requests batches ahead of the loop. After an epoch's last batch, the state is the
                end of that epoch, and an iteration that resumes there ends immediately. Pass ``None`` between
                iterations, or with a loader that also saves the iterator's state (torchdata's
                StatefulDataLoader).

        Raises:
            ConfigError: no iteration has delivered that many batches.
        """
        # A mixed batch takes the last part's batch last.
        delivered = self.parts[-1].pager.delivered()
        if batches_consumed is None or (batches_consumed == 0 and delivered is None):
            return self.parts.state_of(self._cursor.peek())
        count = checked_int("batches_consumed", batches_consumed, 0, _INT64)
        if delivered is None or count > delivered.count:
            reason = "no iteration has begun"
            if delivered is not None:
                reason = f"the latest iteration delivered {delivered.count}"
            raise ConfigError(
                f"batches_consumed={count}, but {reason}. Pass the number of batches that the training loop "
                "has received since iter(loader), even if that iteration was resumed mid-epoch"
            )
        return self.parts.state_of(delivered.position_after(count))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next iteration resume at the position in ``state``, in constant time.

        The first page is requested at once in the background. Iterations in progress are not affected. The
        state may come from another rank, or from a different number of ranks if that number times
        ``batch_size`` is the same. A StatefulDataLoader's state works too, with any number of workers.

        Raises:
            ConfigError: the state belongs to a different plan. The message lists the differences.
            UsageError: this is not the process that created the sampler, or the sampler is closed.
        """
        check_process(self._pid)
        start = self.parts.position_in(extract_sampler_state(state))
        self.parts.prepare(start)
        self._cursor.move(start)

    def job_stats(self) -> SamplerStats:
        """Return the coordinator's counters for this job, over all ranks, and the time this process spent
        fetching pages.

        Raises:
            UsageError: this sampler is for a mix, which has one job per dataset.
        """
        if self.parts.mixes:
            raise UsageError("a mix has one job per dataset. Use [p.job_stats() for p in sampler.parts]")
        return self.parts[0].job_stats()

    def close(self) -> None:
        """Close the job on this rank and stop the background thread. Iterating then fails. Idempotent."""
        if self._closed:
            return
        self._closed = True
        for part in self.parts:
            part.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            "a SuperSampler owns a thread and a connection, so it cannot be pickled or copied. Create one in "
            "each process"
        )
