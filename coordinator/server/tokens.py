"""Tokens: they decide who may call a coordinator, and a job's team. Each token allows every call."""

from __future__ import annotations

import hashlib
import hmac
import logging
from typing import TYPE_CHECKING, Any

from superdl.coordinator.core import NO_TEAM, Team
from superdl.coordinator.server.trust import file_stamp
from superdl.super_wire.credentials import read_tokens, tokens_given
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.protocol import TOKEN_METADATA_KEY

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import grpc

    from superdl.super_wire.credentials import Token

_log = logging.getLogger(__name__)

_SCHEME = "Bearer "
_DIGITS_MAX = 10

_REMEDY = (
    "set SUPER_TOKEN or SUPER_TOKEN_FILE where the sampler (or superdl) runs, to one of the coordinator's"
)
_MISSING = f"this coordinator asks for a token: {_REMEDY}"
_WRONG = f"the coordinator does not know this token: {_REMEDY}"


class Tokens:
    """The accepted tokens, and the teams they name; a token file is read again when it changes.

    ``token`` separates several by commas, ``token_file`` has one in each line. An
    emptied file accepts no tokens. ``ConfigError``: the file cannot be read, a
    token is malformed, or its team's limits are invalid.
    """

    def __init__(self, token: str, token_file: str = "") -> None:
        self._own = tokens_given(token, "token")
        self._file = token_file
        self._stamp = file_stamp(token_file) if token_file else ()
        self._take(read_tokens(token_file, "token_file") if token_file else ())

    def _take(self, from_file: tuple[Token, ...]) -> None:
        known = (*self._own, *from_file)
        self._teams = _teams_of(known, "token_file" if self._file else "token")
        # A token listed without a team too, like a client's own in SUPER_TOKEN, keeps its team.
        named = sorted(known, key=lambda one: "team" in one.rights)
        self._teams_by_digest = {_digest(token): rights.get("team", NO_TEAM) for token, rights in named}

    def teams_now(self) -> tuple[Team, ...]:
        """Return the teams that tokens name, according to the file as it is now."""
        if self._file and (stamp := file_stamp(self._file)) != self._stamp:
            self._stamp = stamp
            self._renew()
        return self._teams

    def accept(self, presented: str) -> bool:
        """Return whether this token is accepted; takes as long for one that nearly is."""
        return self._team(presented) is not None

    def refusal(self, metadata: Iterable[tuple[str, Any]]) -> str:
        """Return why a call with this metadata is refused; empty if it shows an accepted token."""
        shown = [str(value) for key, value in metadata if key == TOKEN_METADATA_KEY]
        if len(shown) != 1 or not shown[0].startswith(_SCHEME):
            return _MISSING
        return "" if self.accept(shown[0].removeprefix(_SCHEME)) else _WRONG

    def team(self, presented: str) -> str:
        """Return a token's team; :data:`NO_TEAM` if it names none, or is not accepted."""
        return self._team(presented) or NO_TEAM

    def _team(self, presented: str) -> str | None:
        self.teams_now()
        digest, matched = _digest(presented), None
        # All are compared, each in constant time. Neither logs nor errors repeat a
        # token, valid or not.
        for known, team in self._teams_by_digest.items():
            if hmac.compare_digest(digest, known):
                matched = team
        return matched

    def _renew(self) -> None:
        try:
            from_file = read_tokens(self._file, "token_file", may_be_none=True)
            self._take(from_file)
        # A missing or broken file changes nothing, since it may be half written.
        except ConfigError as error:
            _log.error("the tokens stay as they were: %s; to let nobody in, empty the file", error)
        else:
            level = logging.INFO if from_file else logging.WARNING
            _log.log(level, "token_file has changed and now holds %d tokens", len(from_file))


def team_of(tokens: Tokens | None, context: grpc.aio.ServicerContext[Any, Any]) -> str:
    """Return the team of the token that a call shows."""
    shown = dict(context.invocation_metadata() or ()).get(TOKEN_METADATA_KEY, "")
    return NO_TEAM if tokens is None else tokens.team(str(shown).removeprefix(_SCHEME))


def is_named(tokens: Tokens | None, team: str) -> bool:
    """Return whether any token names a team now."""
    return tokens is not None and any(limits.name == team for limits in tokens.teams_now())


def _teams_of(tokens: Sequence[Token], origin: str) -> tuple[Team, ...]:
    """Return teams' limits, as given by at least one token of each; several must agree."""
    rights_by_team: dict[str, dict[str, str]] = {}
    teams: dict[str, str] = {}
    for place, (token, rights) in enumerate(tokens, 1):
        which = f"{origin}: token {place} of {len(tokens)}"
        if not rights:
            continue
        name = rights.get("team")
        if not name:
            raise ConfigError(f"{which} has a share or the like: add team=NAME")
        if teams.setdefault(token, name) != name:
            raise ConfigError(f"{which} was listed before, as one of another team")
        team_rights = rights_by_team.setdefault(name, {})
        for right, value in rights.items():
            if team_rights.setdefault(right, value) != value:
                raise ConfigError(f"{which} gives team {name} another {right} than a token before it")
    return tuple(_team(origin, **rights) for rights in rights_by_team.values())


def _team(origin: str, team: str, share: str = "1", priority: str = "0", max_usd: str = "inf") -> Team:
    try:
        return Team(team, float(share), int(priority[:_DIGITS_MAX]), float(max_usd))
    except ConfigError as error:
        raise ConfigError(f"{origin}: {error}") from None
    except ValueError:
        reason = "share and max_usd are numbers, priority is a whole one"
        raise ConfigError(f"{origin}: team {team[:64]}: {reason}") from None


def _digest(token: str) -> bytes:
    # All digests have one length, so comparing two reveals no token's length.
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()
