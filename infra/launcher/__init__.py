"""The cluster launcher: one command, started on every host of a training run, that ends all hosts together.

``python -m infra.launcher`` does one host's part, ``.local`` starts all hosts of a run on this machine, and
``.submit`` makes a SageMaker job of it; docs/clusters.md describes all three. It is not in the wheel. This
face has what all parts share: what a host's part is made of, and how a run ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from infra.launcher.settings import Cluster, LaunchSettings
    from infra.launcher.trust import Trust
    from superdl.experiments.spec import Spec

__all__ = [
    "EXIT_HOST_LOST",
    "EXIT_LEADER_LOST",
    "EXIT_NOT_READY",
    "EXIT_REFUSED",
    "EXIT_SERVICE_FAILED",
    "EXIT_SIGNAL",
    "EXIT_WRONG_SETTINGS",
    "ExitStatus",
    "Launch",
    "RunFailedError",
]

EXIT_WRONG_SETTINGS = 2
EXIT_SERVICE_FAILED = 90
EXIT_HOST_LOST = 91
EXIT_NOT_READY = 92
EXIT_REFUSED = 93
EXIT_LEADER_LOST = 94
EXIT_SIGNAL = 128
"""Plus the number of the signal that ended the run."""


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """What a host's launcher exits with, and why; a good end has no reason."""

    code: int
    reason: str = ""


class RunFailedError(Exception):
    """The run cannot go on; ``status`` is what every host exits with."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.status = ExitStatus(code, reason)


@dataclass(frozen=True, slots=True)
class Launch:
    """One host's part of a run.

    Attributes:
        cluster: who is here.
        settings: how the run is launched.
        trust: how the hosts know one another.
        environment: of what starts here.
        command: the training script and its arguments.
        directory: a private one.
        address: this host's.
        spec: what ``command`` trains, if that is ``superdl run``.
    """

    cluster: Cluster
    settings: LaunchSettings
    trust: Trust
    environment: Mapping[str, str]
    command: Sequence[str]
    directory: Path
    address: str
    spec: Spec | None = None
