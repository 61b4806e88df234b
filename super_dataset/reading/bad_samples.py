"""What becomes of a batch with samples that cannot be produced: raise, skip or replace. Never silently."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Literal, TypeAlias

from superdl.super_dataset.reading.explanations import batch_name, listed
from superdl.super_wire.errors import BadSampleError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from superdl.super_wire.batch_ref import BatchRef

__all__ = ["POLICIES", "BadSampleLog", "OnBadSample", "bad_sample_error", "check_policy", "delivered_order"]

OnBadSample: TypeAlias = Literal["raise", "skip", "replace"]
POLICIES: tuple[OnBadSample, ...] = ("raise", "skip", "replace")

_LOG = logging.getLogger("super_dataset")
_LOG_EVERY_S = 60.0
_REMEDY = 'Mend or remove these objects, or pass on_bad_sample="skip" or "replace" to SuperDataset'


def check_policy(value: object) -> None:
    """Refuse, by :class:`~superdl.super_wire.errors.ConfigError`, what is no policy."""
    if value not in POLICIES:
        msg = f"on_bad_sample is one of {', '.join(map(repr, POLICIES))}; not {value!r}"
        raise ConfigError(msg)


def bad_sample_error(ref: BatchRef, bad: Mapping[int, str], remedy: str = _REMEDY) -> BadSampleError:
    """The error that names the batch, the bad samples' keys and the reasons."""
    named = listed([f"{ref.name_of(offset)} ({bad[offset]})" for offset in sorted(bad)])
    return BadSampleError(
        f"{batch_name(ref)}: {len(bad)} of {len(ref)} samples cannot be produced: {named}. {remedy}"
    )


def delivered_order(ref: BatchRef, bad: Mapping[int, str], policy: OnBadSample) -> list[int] | None:
    """Which samples of the planned batch are delivered, by offset, in order; ``None``: all, as planned.

    ``skip`` leaves the bad out. ``replace`` puts the next good sample of the same batch in the place of each,
    cyclically.

    Raises:
        BadSampleError: the policy is ``raise``, or no sample is good.
    """
    if not bad:
        return None
    if policy == "raise":
        raise bad_sample_error(ref, bad)
    good = [offset for offset in range(len(ref)) if offset not in bad]
    if not good:
        raise bad_sample_error(
            ref, bad, f'on_bad_sample="{policy}" needs at least one good sample in the batch'
        )
    if policy == "skip":
        return good
    size = len(ref)
    following = {}
    successor = good[0]
    for offset in range(size - 1, -1, -1):
        if offset not in bad:
            successor = offset
        following[offset] = successor
    return [following[offset] for offset in range(size)]


class BadSampleLog:
    """Warns of skipped and replaced samples, at most once a minute, and tells how many there were since.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._count = 0
        self._warned_s: float | None = None

    def add(self, ref: BatchRef, bad: Mapping[int, str], policy: OnBadSample) -> None:
        """Count the bad samples of one delivered batch, and warn if it is time."""
        self._count += len(bad)
        now_s = self._clock()
        if self._warned_s is not None and now_s - self._warned_s < _LOG_EVERY_S:
            return
        first = min(bad)
        _LOG.warning(
            "%d bad samples since the last warning (on_bad_sample=%r); in %s: %s (%s)",
            self._count,
            policy,
            batch_name(ref),
            ref.name_of(first),
            bad[first],
        )
        self._warned_s = now_s
        self._count = 0
