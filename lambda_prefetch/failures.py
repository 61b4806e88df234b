"""How one sample fails: an outcome and a reason, raised where it happens and told in the result.

The message says why; the pipeline puts the sample's name before it. Failures of a whole request are
:mod:`superdl.super_wire.errors`'.
"""

from __future__ import annotations

from superdl.super_wire.request import Outcome

__all__ = ["SampleFailedError", "spoiled"]


class SampleFailedError(Exception):
    """One sample cannot be produced now, or ever.

    ``reason`` is the tombstone's short code, and empty where the failure is not the fault of the object's
    bytes: those failures are tried again, so nothing about them is written to the cache.
    """

    def __init__(self, outcome: Outcome, why: str, *, reason: str = "") -> None:
        super().__init__(why)
        self.outcome = outcome
        self.why = why
        self.reason = reason


def spoiled(reason: str, why: str) -> SampleFailedError:
    """A failure for good: this version's bytes will never give a sample.

    ``reason`` is ``empty``, ``not_an_image``, ``undecodable`` or ``too_large``.
    """
    return SampleFailedError(Outcome.TOMBSTONE, why, reason=reason)
