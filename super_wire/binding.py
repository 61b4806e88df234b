"""``DatasetBinding``: what a sampler learns from the coordinator and tells the dataset it was given.

The dataset and the sampler import neither each other nor, in the dataset's case, grpc: this small record is
all that passes between them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from superdl.super_wire.recipe import Recipe

__all__ = ["Bindable", "DatasetBinding"]


@dataclass(frozen=True, slots=True)
class DatasetBinding:
    """What is known of a dataset once its source has been listed.

    ``classes`` is empty where a key list gives labels as numbers; ``label_dtype`` is written as
    :mod:`superdl.super_wire.label_dtype` says; ``cache`` is an address without credentials.
    """

    dataset_id: bytes
    fingerprint: bytes
    size: int
    classes: tuple[str, ...]
    label_dtype: str
    cache: str


class Bindable(Protocol):
    """What a sampler needs of a dataset."""

    @property
    def source(self) -> str:
        """URL of the source."""

    @property
    def recipe(self) -> Recipe:
        """The work done on every sample."""

    @property
    def key_list(self) -> str | None:
        """URL of the key list, if there is one."""

    def bind(self, binding: DatasetBinding) -> None:
        """Take what the coordinator told; called again with the same or newer facts."""

    def ping_cache(self, cache: str) -> None:
        """Reach the cache with the dataset's own credentials, within a bounded wait.

        Raises:
            CacheUnreachableError: nobody answered; the message names the address.
            CacheError: the cache refused, for example the credentials.
        """
