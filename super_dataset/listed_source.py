"""What is known of a dataset's source: how many samples, which classes, each sample's path and label.

A sampler tells it when it is made. Before, the coordinator is asked by what ``superdl`` brings: this package
knows no coordinator.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from superdl.super_dataset.reading import check_label_dtype
from superdl.super_wire.errors import ConfigError, UsageError
from superdl.super_wire.source_url import file_url, join_url, split_url

if TYPE_CHECKING:
    from collections.abc import Callable

    from superdl.super_wire.batch_ref import Bindable, DatasetBinding
    from superdl.super_wire.labels import Labels
    from superdl.super_wire.sample_list import SampleList

__all__ = ["Coordination", "ListedSource", "coordinate_by", "coordination", "normalise_url"]


class Coordination(Protocol):
    """What finds coordinators and asks them: ``superdl.sampler``."""

    @property
    def SuperSampler(self) -> Callable[..., Any]:  # noqa: N802 # the name of the class
        """Makes a sampler, of a dataset and by its arguments."""

    @property
    def describe(self) -> Callable[[Bindable], DatasetBinding]:
        """What a coordinator knows of a dataset, once it has listed the source."""

    @property
    def list_samples(self) -> Callable[[Bindable, bytes], SampleList]:
        """The samples of a dataset whose fingerprint is known."""

    @property
    def list_labels(self) -> Callable[[Bindable, bytes], Labels]:
        """The labels alone."""


_coordination: Coordination | None = None


def coordinate_by(given: Coordination | None) -> None:
    """From now on ask coordinators by ``given``; ``superdl`` says so when a dataset or loader is imported."""
    global _coordination  # noqa: PLW0603 # of the process
    _coordination = given


def coordination(wanted: str) -> Coordination:
    """What asks coordinators; ``UsageError`` where nothing does, with what was ``wanted``."""
    if _coordination is None:
        raise UsageError(
            f"{wanted}: the coordinator knows, and superdl.super_dataset alone finds none: import from "
            "superdl, or make the sampler first: sampler = SuperSampler(dataset, batch_size=...)"
        )
    return _coordination


class ListedSource:
    """The part of a dataset that knows its source; ``coordinator`` is where to ask.

    It asks once. Copies in other processes, such as DataLoader workers, ask only a coordinator that is named:
    else each would start one. They do not carry samples and targets, which may be large.
    """

    coordinator: str | None = None
    """Asked before there is a sampler, and its samplers' default; ``None``: as ``SuperSampler`` says."""

    def __init__(self, coordinator: str | None = None) -> None:
        if coordinator is not None and (not isinstance(coordinator, str) or not coordinator):
            raise ConfigError(f"coordinator is an address such as host:50051; not {coordinator!r}")
        self.coordinator = coordinator
        self.warned: set[str] = set()
        self._binding: DatasetBinding | None = None
        self._looked_at: bytes | None = None
        self._samples: SampleList | None = None
        self._targets: Labels | None = None
        self._made_in = os.getpid()

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names by label; empty where a key list gives labels as numbers."""
        return self._known("classes").classes

    @property
    def class_to_idx(self) -> dict[str, int]:
        """The label of each class name."""
        return {name: label for label, name in enumerate(self.classes)}

    @property
    def samples(self) -> SampleList:
        """Path and label of each sample, in the order of an ImageFolder or of a list's keys: a sequence,
        fetched when first asked for.
        """
        if self._samples is None:
            known = self._known("samples")
            self._samples = self._ask("samples").list_samples(cast("Bindable", self), known.fingerprint)
        return self._samples

    @property
    def targets(self) -> Labels:
        """The label of each sample, in the order of :attr:`samples`: read-only, shape (samples, ...). Where
        a list varies by sample they are a sequence, of which ``targets["boxes"]`` is a field.
        """
        if self._samples is not None:
            return self._samples.labels
        if self._targets is None:
            known = self._known("targets")
            self._targets = self._ask("targets").list_labels(cast("Bindable", self), known.fingerprint)
        return self._targets

    def __len__(self) -> int:
        """Number of samples of the source. Before a sampler was made, this waits until it is listed."""
        return self._known("len()").size

    def __bool__(self) -> bool:
        """True, also before the length is known."""
        return True

    def bind(self, binding: DatasetBinding) -> None:
        """Take what a coordinator told; ``ConfigError`` if no tensor can hold the labels."""
        check_label_dtype(binding.label_dtype)
        if self._binding is not None and self._binding.fingerprint != binding.fingerprint:
            self._samples = self._targets = None
        self._binding, self._made_in = binding, os.getpid()

    @property
    def listed_as(self) -> bytes | None:
        """The fingerprint of the listing that was looked at last, by ``len()``, ``samples`` or the like: of
        which places are. ``None`` before a look.
        """
        return self._looked_at

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_samples": None, "_targets": None}

    def _known(self, wanted: str) -> DatasetBinding:
        if self._binding is None:
            self.bind(self._ask(wanted).describe(cast("Bindable", self)))
        known = cast("DatasetBinding", self._binding)
        self._looked_at = known.fingerprint
        return known

    def _ask(self, wanted: str) -> Coordination:
        is_named = self.coordinator is not None or bool(os.environ.get("SUPER_COORDINATOR"))
        if self._made_in != os.getpid() and not is_named:
            raise UsageError(
                f"{wanted} of this SuperDataset is not known here, and copies in other processes ask no "
                "coordinator but one that coordinator= or SUPER_COORDINATOR names. Length and classes go "
                "with a copy if they are asked for before it is made, or a sampler is made first; of samples "
                "and targets hand over what it needs"
            )
        return coordination(f"{wanted} of a SuperDataset is not known yet")


def normalise_url(value: str | os.PathLike[str], *, name: str) -> str:
    """``s3://bucket/prefix`` and the like, or ``file:///real/path``, of what a user gave as ``name``.

    Whether the source exists is for the coordinator to say: it may run where the files are.

    Raises:
        ConfigError: not text or a path, empty, or of a scheme that SUPER does not read.
    """
    try:
        text = os.fspath(value)
    except TypeError:
        text = None
    if not isinstance(text, str):
        raise ConfigError(f"{name} is a URL or a path; not {value!r}")
    bucket, path = split_url(text, name)
    if bucket:
        # A last slash says nothing, but one behind another is a part of the prefix.
        return re.sub("(?<!/)/$", "", join_url(bucket, path))
    # expanduser raises RuntimeError only where there is no home directory to expand to
    try:
        expanded = Path(path).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"{path!r} begins with a home directory that is not known: {error}") from error
    return file_url(os.fspath(expanded), name)
