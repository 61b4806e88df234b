"""Whom the hosts of a run believe: what a run beyond this machine needs, the proof of a token, Ray's token.

Token and certificates are the coordinator's own (``SUPER_TOKEN``, ``SUPER_TLS_CERT``,
``SUPER_COORDINATOR_CA_FILE``), the cache's password is ``SUPER_CACHE_PASSWORD``, Ray's TLS is Ray's. Beyond
loopback all of it is demanded, unless ``--insecure`` says that the network itself keeps others out.

Ray listens on all of a host's addresses, also where its node is on 127.0.0.1, and runs what it receives:
loopback keeps nobody away from it. So a run's Ray always demands a token. Every host derives it from SUPER's
token and from a salt that the leader sends, so that no host ever sends it.
"""

from __future__ import annotations

import hashlib
import hmac
import importlib.metadata
import logging
import os
import re
import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from superdl.super_wire.coordinator_credentials import CoordinatorCredentials
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from infra.launcher.cluster import Cluster
    from infra.launcher.options import LaunchSettings

__all__ = [
    "Trust",
    "check_trust",
    "ray_environment",
    "ray_token",
    "terms_of",
    "trust_of",
    "written_certificate",
]

_log = logging.getLogger(__name__)

_PEM = "-----BEGIN "
_ALIKE = ("executor", "coordinator", "torchrun", "control_port", "master_port")
_RAY_MODE = "RAY_AUTH_MODE"
_RAY_TOKENS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
_RAY_WITH_TOKENS = (2, 52)


@dataclass(frozen=True, slots=True)
class Trust:
    """How the hosts of a run know one another.

    Attributes:
        token: what each proves to know; empty where nobody demands it.
        server_tls: what the leader shows, if it encrypts.
        client_tls: how the others verify that, if they do.
        server_name: the name in the leader's certificate; empty for its host.
    """

    token: str = field(default="", repr=False)
    server_tls: ssl.SSLContext | None = None
    client_tls: ssl.SSLContext | None = None
    server_name: str = ""

    def proof(self, *words: str) -> str:
        """Shows that this side knows the token, for these words and no others; empty without a token."""
        if not self.token:
            return ""
        sealed = "".join(f"{len(word)}:{word}" for word in ("super-launcher-1", *words))
        return hmac.new(self.token.encode(), _bytes_of(sealed), hashlib.sha256).hexdigest()

    def accepts(self, proof: str, *words: str) -> bool:
        """Whether ``proof`` comes from somebody who knows the token too."""
        return hmac.compare_digest(_bytes_of(proof), self.proof(*words).encode())


def _bytes_of(text: str) -> bytes:
    return text.encode(errors="surrogatepass")  # a stranger may send half of a character


def trust_of(cluster: Cluster, environment: Mapping[str, str], directory: Path) -> Trust:
    """What this host shows and believes; ``directory`` is private, for certificates that come as text.

    Raises:
        ConfigError: a certificate or a token cannot be used.
    """
    credentials = CoordinatorCredentials.from_environment(environment)
    server = None
    if cluster.leads and environment.get("SUPER_TLS_CERT"):
        cert, key = written_certificate(environment, directory)
        server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            server.load_cert_chain(cert, key)
        except (OSError, ssl.SSLError) as error:
            msg = f"SUPER_TLS_CERT and SUPER_TLS_KEY cannot be used: {error}"
            raise ConfigError(msg) from error
    encrypts = credentials.encrypts(cluster.leader)
    if server is not None and not encrypts:
        msg = (
            "SUPER_TLS_CERT is set and SUPER_COORDINATOR_CA_FILE is not: on loopback and with --insecure "
            "clients encrypt only where they have it. Set it on every host, or leave the certificate out"
        )
        raise ConfigError(msg)
    return Trust(
        token=credentials.current_token(),
        server_tls=server,
        client_tls=credentials.tls_context() if encrypts else None,
        server_name=credentials.name,
    )


def written_certificate(environment: Mapping[str, str], directory: Path) -> tuple[str, str]:
    """The files of certificate and key; those that come as text are written, for this user alone."""
    files = []
    for name in ("SUPER_TLS_CERT", "SUPER_TLS_KEY"):
        value = environment.get(name, "")
        if _PEM in value:
            file = directory / f"{name.lower()}.pem"
            with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as opened:
                opened.write(value.replace("\\n", "\n"))
            value = str(file)
        files.append(value)
    return files[0], files[1]


def terms_of(cluster: Cluster, settings: LaunchSettings, environment: Mapping[str, str]) -> dict[str, str]:
    """What all hosts must have been started with: a digest of each, by its name for people.

    The training command is not among it: it may name the host, as a folder for its logs does.
    """
    terms: dict[str, Any] = {
        "--data-hosts (data group)": cluster.data_hosts,
        "--training-hosts (training group)": cluster.training_hosts,
        **{f"--{name.replace('_', '-')}": getattr(settings, name) for name in _ALIKE},
        "--trainer-cpus (some, or none)": bool(settings.trainer_cpus),
        "TRAINING_JOB_NAME": environment.get("TRAINING_JOB_NAME", ""),
    }
    if settings.own_ray:
        own = any(environment.get(name) for name in (_RAY_MODE, *_RAY_TOKENS))
        terms["RAY_AUTH_MODE, RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH (set, or not)"] = own
    return {name: hashlib.sha256(repr(value).encode()).hexdigest() for name, value in terms.items()}


def check_trust(
    cluster: Cluster, environment: Mapping[str, str], *, insecure: bool, own_cache: bool, ray: bool
) -> None:
    """Refuse a run that strangers could enter: beyond this machine, and through Ray, which listens there.

    Raises:
        ConfigError: names all that is missing here.
    """
    lacks = _lacking_beyond(cluster, environment, own_cache=own_cache, ray=ray)
    if ray:
        lacks += _lacking_ray_token(environment)
    if lacks and not insecure:
        msg = (
            f"a run needs what keeps others out, and this host lacks {'; '.join(lacks)}. In "
            "a network that nobody else can reach, allow it by --insecure (SUPER_INSECURE=1)"
        )
        raise ConfigError(msg)
    if lacks:
        _log.warning(
            "INSECURE: without %s: anybody who reaches these hosts may read the data and run code on them",
            "; without ".join(lacks),
        )


def _lacking_beyond(
    cluster: Cluster, environment: Mapping[str, str], *, own_cache: bool, ray: bool
) -> list[str]:
    lacks: list[str] = []
    if cluster.on_loopback:
        return lacks
    if not (environment.get("SUPER_TOKEN") or environment.get("SUPER_TOKEN_FILE")):
        lacks.append("a token (SUPER_TOKEN or SUPER_TOKEN_FILE, the same on every host)")
    if cluster.leads and not (environment.get("SUPER_TLS_CERT") and environment.get("SUPER_TLS_KEY")):
        lacks.append(f"a certificate for {cluster.leader} (SUPER_TLS_CERT and SUPER_TLS_KEY)")
    if own_cache and not environment.get("SUPER_CACHE_PASSWORD"):
        lacks.append("a password for the cache (SUPER_CACHE_PASSWORD, the same on every host)")
    if ray and environment.get("RAY_USE_TLS") != "1":
        lacks.append("TLS between Ray's nodes (RAY_USE_TLS=1 with Ray's certificates)")
    return lacks


def _lacking_ray_token(environment: Mapping[str, str]) -> list[str]:
    """What Ray lacks to keep strangers out, also on loopback; empty if it lacks nothing."""
    mode, version = environment.get(_RAY_MODE, ""), _ray_version()
    if environment.get("RAY_USE_TLS") == "1":
        return []
    if mode.lower() == "disabled":
        why = f"{_RAY_MODE}={mode} lets everybody in"
    elif not mode and version < _RAY_WITH_TOKENS:
        why = f"Ray {'.'.join(map(str, version))} has none: install 2.52 or later"
    else:
        return []
    return [
        f"a token for Ray, which listens beyond loopback ({why}; or RAY_USE_TLS=1 with Ray's certificates)"
    ]


def _ray_version() -> tuple[int, ...]:
    """Ray's version, found without importing it. Where Ray is missing, its start will say so."""
    try:
        text = importlib.metadata.version("ray")
    except importlib.metadata.PackageNotFoundError:
        return _RAY_WITH_TOKENS
    return tuple(int(number) for number in re.findall(r"[0-9]+", text)[:2])


def ray_token(cluster: Cluster, trust: Trust, salt: str) -> str:
    """Ray's token for a run; empty where the hosts share no secret to derive it from.

    Args:
        cluster: the hosts that need it.
        trust: what they know already.
        salt: random, and the same for all; the token itself where nothing leaves this machine.
    """
    if trust.token:
        return trust.proof("ray", salt)
    return salt if cluster.on_loopback or len(cluster.hosts) == 1 else ""


def ray_environment(environment: Mapping[str, str], token: str) -> dict[str, str]:
    """The environment of what speaks to the run's Ray; it keeps what the user has set."""
    own = dict(environment)
    if own.get(_RAY_MODE):
        return own
    if any(own.get(name) for name in _RAY_TOKENS):
        return own | {_RAY_MODE: "token"}
    return own | {_RAY_MODE: "token", _RAY_TOKENS[0]: token} if token else own
