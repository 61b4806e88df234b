"""Teams that share a coordinator: who goes first, who makes room, and who may spend no more."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

NO_TEAM = ""  # the team of jobs whose token names none
Turn: TypeAlias = tuple[int, float]  # the lesser turn goes first
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SHARE_MIN, _SHARE_MAX = 1e-3, 1e6
_PRIORITY_MAX = 1000
_KEPT_S = 2.0  # of its share that a team saves up at most
_SMOOTHING = 0.1
_SAMPLE_S = 0.01  # before any request has ended


@dataclass(frozen=True, slots=True)
class Team:
    """The limits of a team; ``ConfigError``: one of them is out of its range.

    Attributes:
        name: letters, digits and ``. _ -``, at most 64.
        share: of the functions' time and of the cache's memory, relative to the
            other teams' shares.
        priority: teams of a higher one go first; lower ones get only what those leave.
        max_usd: maximum cost of all its requests, in US dollars.
    """

    name: str = NO_TEAM
    share: float = 1.0
    priority: int = 0
    max_usd: float = math.inf

    def __post_init__(self) -> None:
        if self.name and not _NAME.fullmatch(self.name):
            raise ConfigError(f"a team's name has 1 to 64 letters, digits or . _ -; not {self.name[:80]!r}")
        for name, low, high in (
            ("share", _SHARE_MIN, _SHARE_MAX),
            ("priority", -_PRIORITY_MAX, _PRIORITY_MAX),
            ("max_usd", 0, math.inf),
        ):
            if not low <= (value := getattr(self, name)) <= high:
                raise ConfigError(f"team {self.name}: {name} is from {low:g} to {high:g}; not {value}")


@dataclass(slots=True)
class TeamState:
    """A team and its use: requests in flight and made so far, and their cost."""

    facts: Team
    in_flight: int = 0
    requests: int = 0
    usd: float = 0.0
    virtual_s: float = 0.0
    warned_s: float = -math.inf  # the time of the last warning that it may spend no more
    sample_s: float = 0.0  # smoothed time of its requests per sample; 0 before one has ended


class Teams:
    """All teams seen so far. ``spent_usd``: the previous cost of some teams' requests, by name."""

    def __init__(self, teams: Iterable[Team] = (), spent_usd: Mapping[str, float] | None = None) -> None:
        # Start-time fair queueing (Goyal et al., 1996): virtual time advances by
        # the time that a team's requests take, divided by its share; first
        # estimated, then corrected when they end.
        self._states = {NO_TEAM: TeamState(Team())}
        self.given: tuple[Team, ...] = ()  # the teams set last
        self._floor_s = 0.0  # lower bound of all virtual times
        self._sample_s = _SAMPLE_S
        self.change(teams)
        for name, usd in (spent_usd or {}).items():
            self[name].usd = usd

    def __iter__(self) -> Iterator[TeamState]:
        return iter(self._states.values())

    def __getitem__(self, name: str) -> TeamState:
        state = self._states.get(name)
        if state is None:
            state = self._states[name] = TeamState(Team(name))
        return state

    @property
    def several(self) -> bool:
        """Return whether there is more than one team."""
        return len(self._states) > 1

    def change(self, teams: Iterable[Team]) -> None:
        """Set teams' limits; a team no longer listed keeps its limits for its open jobs."""
        self.given = tuple(teams)
        facts = {team.name: team for team in self.given}
        for name in sorted({*facts, *self._states}):
            self[name].facts = facts.get(name, self[name].facts)

    def turn(self, name: str) -> Turn:
        """Return a team's turn: the highest priority goes first, then the least virtual time."""
        state = self[name]
        return -state.facts.priority, max(self._floor_s, state.virtual_s)

    def began(self, name: str, samples: int, *, capacity: int) -> float:
        """Account for a new request, of ``capacity`` at most; return its expected time in seconds."""
        state = self[name]
        expected_s = samples * (state.sample_s or self._sample_s)
        start_s, passes_s = max(self._floor_s, state.virtual_s), expected_s / state.facts.share
        state.virtual_s = start_s + passes_s
        state.in_flight += 1
        shares = sum(team.facts.share for team in self if team.in_flight)
        # A team that needed less must not catch up on all of it.
        self._floor_s = max(self._floor_s, start_s - max(passes_s, _KEPT_S * capacity / shares))
        state.requests += 1
        return expected_s

    def ended(self, name: str, samples: int, took_s: float, *, expected_s: float) -> None:
        """Account for an ended request, with any result, that used a function for ``took_s``."""
        state = self[name]
        state.in_flight -= 1
        state.virtual_s += (took_s - expected_s) / state.facts.share
        if took_s:  # 0: no function ran
            each_s = took_s / samples
            state.sample_s += (each_s - state.sample_s) * (_SMOOTHING if state.sample_s else 1.0)
            self._sample_s = state.sample_s

    def may_spend(self, name: str, request_usd: float) -> bool:
        """Return whether a team can afford a further request, at ``request_usd`` for each in flight."""
        state = self[name]
        expected_usd = state.usd + (state.in_flight + 1) * request_usd
        return expected_usd <= state.facts.max_usd and state.usd < state.facts.max_usd

    def refusal(self, name: str) -> str:
        """Explain to a team's reader why production stopped, and how to go on."""
        state = self[name]
        return (
            f"the requests of team {name} have cost {state.usd:.4f} USD, and its max_usd is "
            f"{state.facts.max_usd:g}, which a request more might pass: to go on, raise max_usd in the "
            "coordinator's token_file"
        )
