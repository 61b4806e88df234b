"""The embedded default for a benchmark: one coordinator, cache and function pool for all its arms, with
their process ids.

Starting and ending them is :mod:`superdl.sampler.embedded.embedded`'s. Here they are held for the time of a
benchmark and told apart, so that each one's CPU can be read.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

import psutil

from benchmarks.errors import BenchmarkError
from superdl.sampler.embedded.embedded import Embedded

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

__all__ = ["Services"]


@dataclass(frozen=True, slots=True)
class Services:
    """A context manager's worth of services. The functions are the coordinator's children.

    ``environment`` is what processes that read need beside the coordinator's address.
    """

    coordinator: str
    coordinator_pid: int
    cache_pid: int
    environment: Mapping[str, str] = field(default_factory=dict)
    embedded: Embedded | None = None

    @classmethod
    def start(cls, benchmark: str) -> Services:
        """Start them and wait until they answer.

        Raises:
            EmbeddedError: they cannot be started.
            BenchmarkError: their processes were not found.

        """
        embedded = Embedded(f"bench:{benchmark}:{os.getpid()}")
        children = _children_of_supervisor()
        coordinator = [child.pid for child in children if "coordinator" in child.cmdline()]
        cache = [child.pid for child in children if child.name().endswith("-server")]
        if len(coordinator) != 1 or len(cache) != 1:
            embedded.release()
            raise BenchmarkError(
                f"expected one coordinator and one cache server below the supervisor, not {children}"
            )
        return cls(embedded.coordinator, coordinator[0], cache[0], embedded=embedded)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.embedded is not None:
            self.embedded.release()


def _children_of_supervisor() -> list[psutil.Process]:
    return [
        child
        for supervisor in psutil.Process().children()
        if "superdl.sampler.embedded.supervisor" in supervisor.cmdline()
        for child in supervisor.children()
    ]
