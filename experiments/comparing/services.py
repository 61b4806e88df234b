"""Coordinator, cache and functions that the trials of one arm share for one round: started cold, ended after.

It is the embedded default, held by the comparison as a training process holds it; the trials are told its
address as they would be told of any coordinator.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

import psutil

from superdl.experiments.monitoring.readings import ProcessGroups
from superdl.experiments.run import embedded_executor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from superdl.experiments.comparing.measured import CpuSample
    from superdl.experiments.spec import Spec

__all__ = ["SharedServices", "shared_services"]

_GRACE_S = 0.1
"""Nobody comes back after the last trial."""


class SharedServices:
    """The services of one round, and the CPU time that they have used."""

    def __init__(self, address: str, supervisor: psutil.Process | None) -> None:
        self.address = address
        self.samples: list[CpuSample] = []
        self._groups = None if supervisor is None else ProcessGroups(supervisor)

    def sample(self) -> None:
        """Look at what they have used by now."""
        if self._groups is None:
            return
        with contextlib.suppress(psutil.NoSuchProcess):  # killed by somebody: what was seen of it stays
            groups = self._groups.read()
            used = {name: reading.cpu_s for name, reading in groups.items()}
            used["supervisor"] = used.get("supervisor", 0.0) + used.pop("trainer", 0.0)
            self.samples.append((time.time(), used))


@contextlib.contextmanager
def shared_services(spec: Spec) -> Iterator[SharedServices]:
    """Start them as the spec's executor wants them; when the block ends, they have ended.

    Raises:
        EmbeddedError: they do not start.
        ConfigError: a variable is wrong, or one is missing that the executor needs.

    """
    from superdl.sampler.embedded.embedded import (
        Embedded,  # torch comes with it: not for a comparison that needs none
    )
    from superdl.sampler.embedded.supervisor_settings import SupervisorSettings

    with embedded_executor(spec):
        settings = replace(SupervisorSettings.of_this_host(), grace_s=_GRACE_S)
        held = Embedded(f"compare:{uuid.uuid4().hex}", settings)
    try:
        services = SharedServices(held.coordinator, _supervisor())
        services.sample()
        yield services
        services.sample()
    finally:
        held.release()


def _supervisor() -> psutil.Process | None:
    """The supervisor that this process has started."""
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if "superdl.sampler.embedded.supervisor" in child.cmdline():
                return child
    return None
