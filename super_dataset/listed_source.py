"""Access to a dataset's source: its size, classes, paths, labels, and single samples by index."""

from __future__ import annotations

import operator
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from superdl.super_dataset.reading.delivery import check_label_dtype
from superdl.super_wire.batch_ref import BatchRef
from superdl.super_wire.errors import ConfigError, UsageError
from superdl.super_wire.source_url import file_url, join_url, split_url

if TYPE_CHECKING:
    from collections.abc import Sized

    from superdl.sampler import SuperSampler
    from superdl.super_wire.batch_ref import Bindable, DatasetBinding
    from superdl.super_wire.labels import Labels, SampleList


class ListedSource:
    """Base class of datasets. It queries the coordinator about the source once."""

    # The coordinator to query, also the samplers' default. None means the default of SuperSampler.
    coordinator: str | None = None

    def __init__(self, coordinator: str | None = None) -> None:
        if coordinator is not None and (not isinstance(coordinator, str) or not coordinator):
            raise ConfigError(f"coordinator must be an address such as host:50051, not {coordinator!r}")
        self.coordinator = coordinator
        self.warned: set[str] = set()
        self._binding: DatasetBinding | None = None
        # Fingerprint of the listing last used by len(), samples and so on, which the user's indices refer to.
        self.listed_as: bytes | None = None
        self._samples: SampleList | None = None
        self._targets: Labels | None = None
        self._bound_pid = os.getpid()

    @property
    def classes(self) -> tuple[str, ...]:
        """Return the class names in label order, or an empty tuple for a key list with numeric labels."""
        return self._bound("classes").classes

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Return a dict from class names to labels."""
        return {name: label for label, name in enumerate(self.classes)}

    @property
    def samples(self) -> SampleList:
        """Return the (path, label) pairs of all samples, in the order of an ImageFolder or the key list."""
        if self._samples is None:
            from superdl.sampler import list_samples

            fingerprint = self._bound("samples").fingerprint
            self._samples = list_samples(self._queryable("samples"), fingerprint)
        return self._samples

    @property
    def targets(self) -> Labels:
        """Return the read-only labels, of shape (samples, ...), in the order of :attr:`samples`.

        Labels of varying length are a sequence with fields such as ``targets["boxes"]``.
        """
        if self._samples is not None:
            return self._samples.labels
        if self._targets is None:
            from superdl.sampler import list_labels

            fingerprint = self._bound("targets").fingerprint
            self._targets = list_labels(self._queryable("targets"), fingerprint)
        return self._targets

    def __len__(self) -> int:
        """Return the number of samples. Without a sampler, wait for the listing first."""
        return self._bound("len()").size

    def __bool__(self) -> bool:
        """Return True, even if the length is not known yet."""
        return True

    def bind(self, binding: DatasetBinding) -> None:
        """Store the coordinator's listing. Raises ``ConfigError`` if torch lacks a label's dtype."""
        check_label_dtype(binding.label_dtype)
        # In another listing, samples have other indices.
        if self._binding is not None and self._binding.fingerprint != binding.fingerprint:
            self._samples = self._targets = None
        self._binding, self._bound_pid = binding, os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        # Samples and targets may be large, so workers get copies without them.
        return {**self.__dict__, "_samples": None, "_targets": None}

    def _bound(self, fact: str) -> DatasetBinding:
        if self._binding is None:
            from superdl.sampler import describe

            self.bind(describe(self._queryable(fact)))
        known = cast("DatasetBinding", self._binding)
        self.listed_as = known.fingerprint
        return known

    def _queryable(self, fact: str) -> Bindable:
        """Return this dataset. Raises ``UsageError`` if a query for ``fact`` would start a coordinator."""
        has_address = self.coordinator is not None or bool(os.environ.get("SUPER_COORDINATOR"))
        # Without an address, each worker would start its own coordinator.
        if self._bound_pid != os.getpid() and not has_address:
            raise UsageError(
                f"{fact} of this SuperDataset is unknown in this process, and a copy only queries a "
                "coordinator set by coordinator= or SUPER_COORDINATOR. To include length and classes in the "
                "copy, access them or create a sampler before copying. Pass samples and targets separately"
            )
        return cast("Bindable", self)


def normalise_url(value: str | os.PathLike[str], *, name: str) -> str:
    """Normalise a URL, or turn a path into ``file://``. A ``ConfigError`` names the argument if invalid."""
    try:
        text = os.fspath(value)
    except TypeError:
        text = None
    if not isinstance(text, str):
        raise ConfigError(f"{name} must be a URL or a path, not {value!r}")
    bucket, path = split_url(text, name)
    if bucket:
        # A trailing slash has no meaning, but a second one is part of the prefix.
        return re.sub("(?<!/)/$", "", join_url(bucket, path))
    try:
        expanded = Path(path).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"{path!r} begins with an unknown home directory: {error}") from error
    # The coordinator checks whether it exists, since it may run elsewhere, where the files are.
    return file_url(os.fspath(expanded), name)


_FETCH, _WRAPPERS = "torch.utils.data._utils.fetch", ("torch.utils.data.dataset", "superdl.super_dataset")
_THREE_LINES = """\
    dataset = SuperDataset(source, recipe)
    sampler = SuperSampler(dataset, batch_size=256, shuffle=True)
    loader = DataLoader(dataset, sampler=sampler, batch_size=None)"""


def checked_index(index: Any, dataset: Sized) -> int:
    """Convert an index into ``dataset.samples``, which may be negative, to a non-negative one.

    Raises ``IndexError`` for an index out of range, and ``UsageError`` for other types or in a DataLoader.
    """
    if isinstance(index, slice):
        raise UsageError(
            "a SuperDataset does not support slices. Pass SuperLoader a "
            f"torch.utils.data.Subset(dataset, range({index.start or 0}, "
            f"{'len(dataset)' if index.stop is None else index.stop})). dataset[i] is a single sample"
        )
    try:
        number = operator.index(index)
    except TypeError:
        number = None
    if number is None or isinstance(index, bool) or _called_by_loader():
        raise UsageError(how_to_use(index))
    size = len(dataset)
    if not -size <= number < size:
        raise IndexError(f"sample {number} is out of range: the dataset has {size} samples")
    return number % size


def sampler_for(dataset: Bindable, index: int) -> SuperSampler:
    """Return a sampler that yields only the sample at ``index``, as in the first epoch with seed 0."""
    from superdl.sampler import SuperSampler

    return SuperSampler(
        dataset,
        batch_size=1,
        shuffle=False,
        indices=[index],
        rank=0,
        num_replicas=1,
        job=f"sample-{os.urandom(8).hex()}",  # a separate job
    )


def how_to_use(index: object) -> str:
    """Explain why ``dataset[index]`` was rejected, and show the intended use."""
    if isinstance(index, list | tuple) and index and all(isinstance(item, BatchRef) for item in index):
        return (
            "SuperDataset got a list of BatchRefs. Each is a whole batch already, so the DataLoader must not "
            f"combine them. Pass batch_size=None (and no batch_sampler):\n{_THREE_LINES}"
        )
    return (
        f"a DataLoader must index a SuperDataset by the BatchRefs of a SuperSampler, not by "
        f"{type(index).__name__} ({str(index)[:40]}), since it reads whole batches. Use it like this:\n"
        f"{_THREE_LINES}\n"
        "If you did, a framework has replaced the SuperSampler with its own. Do not pass the loader to "
        "Accelerate's prepare(), or overfit_batches to Lightning's Trainer (docs/frameworks.md). Outside a "
        "DataLoader, dataset[i] is a single sample"
    )


def _called_by_loader() -> bool:
    # A DataLoader with another sampler indexes single samples, perhaps through a Subset, and would take
    # each of them for a batch.
    frame = sys._getframe(1)  # noqa: SLF001 # only the stack shows the caller
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith(_WRAPPERS):
        frame = frame.f_back
    return frame.f_globals.get("__name__") == _FETCH
