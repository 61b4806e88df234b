"""Who may use the Ray of a run: whoever knows its token, which is made for the run unless the user has one.

Ray's servers listen on all of a host's addresses, also where its node is on 127.0.0.1, and run what they are
sent: loopback keeps nobody away from them. So a run's Ray always asks for a token. Where there is a token of
SUPER's, every host makes Ray's from that and from a salt that the leader tells, and nobody sends it.
"""

from __future__ import annotations

import importlib.metadata
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from infra.launcher.cluster import Cluster
    from infra.launcher.trust import Trust

__all__ = ["asks_for_token", "has_own_way", "lack_of_ray", "ray_environment", "run_token"]

_MODE = "RAY_AUTH_MODE"
_TOKENS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
_SINCE = (2, 52)


def ray_environment(environment: Mapping[str, str], token: str) -> dict[str, str]:
    """The environment of what speaks to the run's Ray; the user's own way of asking for tokens is kept."""
    own = dict(environment)
    if own.get(_MODE):
        return own
    if any(own.get(name) for name in _TOKENS):
        return own | {_MODE: "token"}
    return own | {_MODE: "token", _TOKENS[0]: token} if token else own


def has_own_way(environment: Mapping[str, str]) -> bool:
    """Whether the user has said how Ray is to ask for tokens."""
    return any(environment.get(name) for name in (_MODE, *_TOKENS))


def run_token(cluster: Cluster, trust: Trust, salt: str) -> str:
    """Ray's token for a run; empty where it could not be told to all without telling strangers.

    Args:
        cluster: who is to know it.
        trust: what they know already.
        salt: random, and the same for all; the token itself on a line that does not leave this machine.
    """
    if trust.token:
        return trust.proof("ray", salt)
    return salt if cluster.on_loopback or len(cluster.hosts) == 1 else ""


def asks_for_token(environment: Mapping[str, str]) -> bool:
    """Whether Ray here asks for tokens, or does where it is given one."""
    mode = environment.get(_MODE, "")
    return mode.lower() != "disabled" and bool(mode or _version() is None or (_version() or ()) >= _SINCE)


def lack_of_ray(environment: Mapping[str, str]) -> str:
    """What Ray lacks to keep strangers out, also on loopback; empty if it lacks nothing."""
    if environment.get("RAY_USE_TLS") == "1" or asks_for_token(environment):
        return ""
    if environment.get(_MODE):
        why = f"{_MODE}={environment[_MODE]} lets everybody in"
    else:
        why = f"Ray {'.'.join(map(str, _version() or ()))} has none: install 2.52 or later"
    return f"a token for Ray, which listens beyond loopback ({why}; or RAY_USE_TLS=1 with Ray's certificates)"


def _version() -> tuple[int, ...] | None:
    """Ray's, told without importing it; none if it is not here, which its start will tell."""
    try:
        text = importlib.metadata.version("ray")
    except importlib.metadata.PackageNotFoundError:
        return None
    return tuple(int(number) for number in re.findall(r"[0-9]+", text)[:2])
