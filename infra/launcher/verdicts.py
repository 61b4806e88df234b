"""How a run ends: the exit code that every host gives, and the reason in a sentence."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "EXIT_HOST_LOST",
    "EXIT_LEADER_LOST",
    "EXIT_NOT_READY",
    "EXIT_REFUSED",
    "EXIT_SERVICE_FAILED",
    "EXIT_SIGNAL",
    "EXIT_WRONG_SETTINGS",
    "RunFailedError",
    "Verdict",
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
class Verdict:
    """What a host's launcher exits with, and why; the reason of a good end is empty."""

    code: int
    reason: str = ""


class RunFailedError(Exception):
    """The run cannot go on; what every host is to exit with."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.verdict = Verdict(code, reason)
