"""The executors as the core sees them, the cheapest first, and which of them is to have the next request.

The cheapest that has a place gets it. Where it has none, a request goes to the next one, unless it can wait:
what is wanted later than the slow requests of both take is kept for the cheaper, so that the dearer gets what
the cheaper cannot do in time, and no more. Executors that refuse or fail are set aside for a while, and the
next one takes their place; that is :mod:`coordinator.core.health`'s. With one executor there is no choice,
and nothing is set aside.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from coordinator.core.concurrency import Concurrency
from coordinator.core.health import LONGEST_S, Health
from coordinator.core.latency import LatencyModel

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

__all__ = ["Fleet", "Member"]

_SLOW = 0.99
_NO_OTHER_S = 5.0
_NOWHERE: Collection[int] = frozenset()


@dataclass(slots=True)
class Member:
    """One executor: how much it takes, how long it takes, and how it fares."""

    number: int
    name: str
    concurrency: Concurrency = field(default_factory=Concurrency)
    latency: LatencyModel = field(default_factory=LatencyModel)
    health: Health = field(default_factory=Health)
    in_flight: int = 0
    requests: int = 0
    """Made so far, hedges included."""
    samples: int = 0
    """Produced so far."""
    usd: float = 0.0
    """Billed for them so far."""

    def idle(self, now: float) -> int:
        """How many of its functions have nothing to do."""
        return self.concurrency.idle(self.in_flight, now)


class Fleet:
    """All executors, in order of preference.

    Args:
        names: what people call them, the cheapest first; at least one.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.members = tuple(Member(number, name) for number, name in enumerate(names))
        self._alone = len(self.members) == 1

    @property
    def capacity(self) -> int:
        """Requests that they take at once at most."""
        return sum(member.concurrency.capacity for member in self.members)

    def limit(self, now: float) -> int:
        """Requests that they take at once now."""
        return sum(self.limit_of(member, now) for member in self.members)

    def limit_of(self, member: Member, now: float) -> int:
        """Requests that an executor takes at once now."""
        return 0 if now < self._aside_until_s(member) else member.concurrency.limit(now)

    def places(self, now: float) -> int:
        """How many more requests may be made."""
        if self._alone:
            return self.members[0].concurrency.places(self.members[0].in_flight, now)
        return sum(max(0, self.places_of(member, now)) for member in self.members)

    def places_of(self, member: Member, now: float) -> int:
        """How many more requests an executor may be given. One that was set aside is tried with a single
        one.
        """
        places = member.concurrency.places(member.in_flight, now)
        if self._alone or not member.health.doubtful:
            return places
        return 0 if now < self._aside_until_s(member) else min(places, 1 - member.in_flight)

    def idle(self, now: float) -> int:
        """How many functions have nothing to do, of executors that may be asked."""
        return sum(member.idle(now) for member in self.members if self.places_of(member, now) > 0)

    def _aside_until_s(self, member: Member) -> float:
        """Until when an executor is left alone; not for long, where there is no better one."""
        if self._alone or not member.health.doubtful:
            return -math.inf
        better = any(self._is_sound(other) for other in self.members)
        return member.health.aside_until_s(LONGEST_S if better else _NO_OTHER_S)

    def _is_sound(self, member: Member) -> bool:
        return member.concurrency.capacity > 0 and (self._alone or not member.health.doubtful)

    def choose(
        self,
        now: float,
        *,
        slack_s: float = 0.0,
        soon: bool = True,
        samples: int = 1,
        unfit: Collection[int] = _NOWHERE,
        other_than: int | None = None,
    ) -> Member | None:
        """Who is to have the next request; ``None``: nobody has a place for it, or it can wait for one.

        Args:
            now: the time in seconds.
            slack_s: time until the first of its samples is wanted.
            soon: whether it is among the first to be wanted; only those do not wait while nobody knows how
                long requests take.
            samples: how many it is going to have.
            unfit: executors that cannot do it.
            other_than: one that gets it only if no other has a place.
        """
        if self._alone:  # as often as not; all that follows would come to the same
            return self.members[0] if self.places(now) > 0 else None
        fit = [member for member in self.members if member.number not in unfit]
        free = [member for member in fit if self.places_of(member, now) > 0]
        if not free:
            return None
        cheaper = [member for member in fit[: fit.index(free[0])] if self._is_sound(member)]
        if cheaper:
            haste_s = self._haste_s(cheaper, free[0], samples)
            if not soon if haste_s is None else slack_s > haste_s:
                return None
        return next((member for member in free if member.number != other_than), free[0])

    def _haste_s(self, cheaper: Sequence[Member], dearer: Member, samples: int) -> float | None:
        """What is wanted sooner than that does not wait for a cheaper executor: the time of a slow request
        there and, since it may come to nothing, here; ``None`` before enough is known.
        """
        times_s = [member.latency.quantile_s(samples, _SLOW) for member in (*cheaper, dearer)]
        known_s = [time_s for time_s in times_s if time_s is not None]
        return sum(known_s) if len(known_s) == len(times_s) else None

    def hasty_in_s(self, now: float, *, slack_s: float, samples: int, unfit: Collection[int]) -> float | None:
        """In what time a request that :meth:`choose` lets wait does so no more; ``None`` if it waits for
        a place, whoever has one, or for answers.
        """
        fit = [member for member in self.members if member.number not in unfit]
        free = [member for member in fit if self.places_of(member, now) > 0]
        if not free:
            return None
        cheaper = [member for member in fit[: fit.index(free[0])] if self._is_sound(member)]
        haste_s = self._haste_s(cheaper, free[0], samples)
        return None if haste_s is None else slack_s - haste_s

    def slow_s(self, samples: int) -> float | None:
        """How long slow requests take: waiting for one executor, and then another, where there are several;
        ``None`` before enough is known.
        """
        times_s = [member.latency.quantile_s(samples, _SLOW) for member in self.members]
        known_s = [time_s for time_s in times_s if time_s is not None]
        return sum(known_s) if known_s else None

    def can_turn_elsewhere(self, member: Member, unfit: Collection[int] = _NOWHERE) -> bool:
        """Whether another executor, in good health, could do the same."""
        return any(
            self._is_sound(other)
            for other in self.members
            if other is not member and other.number not in unfit
        )

    def wake_times_s(self, now: float) -> Iterator[float]:
        """When executors that take no more now may do so by the passing of time alone."""
        for member in self.members:
            if self.places_of(member, now) > 0:
                continue
            aside_until_s = self._aside_until_s(member)
            more_at_s = member.concurrency.more_at_s(now) if aside_until_s <= now else aside_until_s
            if more_at_s is not None:
                yield more_at_s
