"""Tokens, which decide who may call a coordinator and which team a job is in. Any token allows all calls."""

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

_REMEDY = "set SUPER_TOKEN or SUPER_TOKEN_FILE to one of its tokens where the sampler (or superdl) runs"
_MISSING = f"this coordinator requires a token: {_REMEDY}"
_WRONG = f"the coordinator does not accept this token: {_REMEDY}"


class Tokens:
    """The accepted tokens and their teams. The token file is reloaded when it changes.

    ``token`` contains tokens separated by commas, and ``token_file`` has one per line. Emptying the file
    revokes its tokens. Raises ``ConfigError`` if the file cannot be read, or if a token or its team's limits
    are invalid.
    """

    def __init__(self, token: str, token_file: str = "") -> None:
        self._own = tokens_given(token, "token")
        self._file = token_file
        self._stamp = file_stamp(token_file) if token_file else ()
        self._use(read_tokens(token_file, "token_file") if token_file else ())

    def _use(self, from_file: tuple[Token, ...]) -> None:
        tokens = (*self._own, *from_file)
        self._teams = _teams_of(tokens, "token_file" if self._file else "token")
        # A token that is also given without a team, such as a client's own in SUPER_TOKEN, has its team.
        teams_last = sorted(tokens, key=lambda token: "team" in token.rights)
        self._teams_by_digest = {_digest(token): rights.get("team", NO_TEAM) for token, rights in teams_last}

    def teams_now(self) -> tuple[Team, ...]:
        """Return the teams of all tokens, reloading the file if it has changed."""
        if self._file and (stamp := file_stamp(self._file)) != self._stamp:
            self._stamp = stamp
            self._read_file()
        return self._teams

    def accept(self, presented: str) -> bool:
        """Check in constant time whether a token is accepted."""
        return self._team(presented) is not None

    def refusal(self, metadata: Iterable[tuple[str, Any]]) -> str:
        """Return the reason to refuse a call with this metadata, or an empty string if it is accepted."""
        presented = [str(value) for key, value in metadata if key == TOKEN_METADATA_KEY]
        if len(presented) != 1 or not presented[0].startswith(_SCHEME):
            return _MISSING
        return "" if self.accept(presented[0].removeprefix(_SCHEME)) else _WRONG

    def team(self, presented: str) -> str:
        """Return a token's team, or :data:`NO_TEAM` if it has no team or is not accepted."""
        return self._team(presented) or NO_TEAM

    def _team(self, presented: str) -> str | None:
        self.teams_now()
        digest, matched = _digest(presented), None
        # Compare with all tokens, each in constant time. Logs and errors never contain a token, valid or not.
        for known, team in self._teams_by_digest.items():
            if hmac.compare_digest(digest, known):
                matched = team
        return matched

    def _read_file(self) -> None:
        try:
            from_file = read_tokens(self._file, "token_file", allow_empty=True)
            self._use(from_file)
        except ConfigError as error:  # perhaps the file is being replaced
            _log.error("keeping the previous tokens: %s. To revoke them all, empty the file", error)
        else:
            level = logging.INFO if from_file else logging.WARNING
            _log.log(level, "token_file has changed: it contains %d tokens", len(from_file))


def team_of(tokens: Tokens | None, context: grpc.aio.ServicerContext[Any, Any]) -> str:
    """Return the team that a call's token belongs to."""
    presented = dict(context.invocation_metadata() or ()).get(TOKEN_METADATA_KEY, "")
    return NO_TEAM if tokens is None else tokens.team(str(presented).removeprefix(_SCHEME))


def has_tokens(tokens: Tokens | None, team: str) -> bool:
    """Return whether any current token belongs to ``team``."""
    return tokens is not None and any(limits.name == team for limits in tokens.teams_now())


def _teams_of(tokens: Sequence[Token], origin: str) -> tuple[Team, ...]:
    """Return the teams and their limits. All tokens of a team must have the same limits."""
    rights_by_team: dict[str, dict[str, str]] = {}
    teams: dict[str, str] = {}
    for number, (token, rights) in enumerate(tokens, 1):
        which = f"{origin}: token {number} of {len(tokens)}"
        if not rights:
            continue
        name = rights.get("team")
        if not name:
            raise ConfigError(f"{which} has limits, but no team: add team=NAME")
        if teams.setdefault(token, name) != name:
            raise ConfigError(f"{which} was already listed for another team")
        team_rights = rights_by_team.setdefault(name, {})
        for right, value in rights.items():
            if team_rights.setdefault(right, value) != value:
                raise ConfigError(f"{which} has another {right} than an earlier token of team {name}")
    return tuple(_team(origin, **rights) for rights in rights_by_team.values())


def _team(origin: str, team: str, share: str = "1", priority: str = "0", max_usd: str = "inf") -> Team:
    try:
        return Team(team, float(share), int(priority[:_DIGITS_MAX]), float(max_usd))
    except ConfigError as error:
        raise ConfigError(f"{origin}: {error}") from None
    except ValueError:
        reason = "share and max_usd must be numbers, and priority must be an integer"
        raise ConfigError(f"{origin}: team {team[:64]}: {reason}") from None


def _digest(token: str) -> bytes:
    # Digests all have the same length, so comparing them does not reveal the length of a token.
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()
