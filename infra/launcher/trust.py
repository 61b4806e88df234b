"""Whom the hosts of a run believe: what a run beyond this machine needs, the proof of a token, Ray's token.

Token and certificates are the coordinator's own (``SUPER_TOKEN``, ``SUPER_TLS_CERT``,
``SUPER_COORDINATOR_CA_FILE``), the cache's password is ``SUPER_CACHE_PASSWORD``, Ray's TLS is Ray's. Beyond
loopback all of it is demanded, unless ``--insecure`` says that the network itself keeps others out.

Ray listens on all of a host's addresses, also where its node is on 127.0.0.1, and runs what it receives. So a
run's Ray always demands a token. Every host derives it from SUPER's token and from a salt that the leader
sends, so that no host ever sends it.
"""

from __future__ import annotations

import hashlib
import hmac
import importlib.metadata
import logging
import re
import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from superdl.super_wire.coordinator_credentials import CoordinatorCredentials
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from infra.launcher.settings import Cluster, LaunchSettings

__all__ = ["Trust", "check_trust", "ray_environment", "ray_token", "terms_of", "trust_of"]

_log = logging.getLogger(__name__)

_MAY_DIFFER = {
    *("data_cpus", "trainer_cpus", "ranks_per_host", "cache_bytes", "insecure"),
    *("start_wait_s", "stop_wait_s", "silence_s"),
    # These may name the host, as a folder for its logs does.
    *("host", "command", "config_dir", "failure_file"),
    *("data_hosts", "training_hosts"),  # of which the cluster is made
}
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


def trust_of(cluster: Cluster, environment: Mapping[str, str]) -> Trust:
    """What this host shows and believes.

    Raises:
        ConfigError: a certificate or a token cannot be used.
    """
    credentials = CoordinatorCredentials.from_environment(environment)
    encrypts = credentials.encrypts(cluster.leader)
    server = None
    if cluster.leads and environment.get("SUPER_TLS_CERT"):
        if not encrypts:
            msg = (
                "SUPER_TLS_CERT is set and SUPER_COORDINATOR_CA_FILE is not: on loopback and with --insecure "
                "clients encrypt only where they have it. Set it on every host, or leave the certificate out"
            )
            raise ConfigError(msg)
        server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            server.load_cert_chain(environment["SUPER_TLS_CERT"], environment.get("SUPER_TLS_KEY"))
        except (OSError, ssl.SSLError) as error:
            msg = f"the files SUPER_TLS_CERT and SUPER_TLS_KEY cannot be used: {error}"
            raise ConfigError(msg) from error
    return Trust(
        token=credentials.current_token(),
        server_tls=server,
        client_tls=credentials.tls_context() if encrypts else None,
        server_name=credentials.name,
    )


def terms_of(cluster: Cluster, settings: LaunchSettings, environment: Mapping[str, str]) -> str:
    """A digest of what all hosts must have been started with alike: version, hosts, most options, the job."""
    ray_is_users = settings.own_ray and any(environment.get(name) for name in (_RAY_MODE, *_RAY_TOKENS))
    alike = (
        importlib.metadata.version("superdl"),
        (cluster.data_hosts, cluster.training_hosts),
        sorted((name, value) for name, value in vars(settings).items() if name not in _MAY_DIFFER),
        (environment.get("TRAINING_JOB_NAME", ""), ray_is_users),
    )
    return hashlib.sha256(repr(alike).encode()).hexdigest()


def check_trust(
    cluster: Cluster, settings: LaunchSettings, environment: Mapping[str, str], *, insecure: bool
) -> None:
    """Refuse a run that strangers could enter: beyond this machine, and through Ray, which listens there.

    Raises:
        ConfigError: names all that is missing here.
    """
    ray_tls = not settings.own_ray or environment.get("RAY_USE_TLS") == "1"
    lacks = []
    if not cluster.on_loopback:
        if not (environment.get("SUPER_TOKEN") or environment.get("SUPER_TOKEN_FILE")):
            lacks.append("a token (SUPER_TOKEN or SUPER_TOKEN_FILE, the same on every host)")
        if cluster.leads and not (environment.get("SUPER_TLS_CERT") and environment.get("SUPER_TLS_KEY")):
            lacks.append(f"a certificate for {cluster.leader} (SUPER_TLS_CERT and SUPER_TLS_KEY)")
        if not (settings.cache or settings.coordinator or environment.get("SUPER_CACHE_PASSWORD")):
            lacks.append("a password for the cache (SUPER_CACHE_PASSWORD, the same on every host)")
        if not ray_tls:
            lacks.append("TLS between Ray's nodes (RAY_USE_TLS=1 with Ray's certificates)")
    if not ray_tls and (why := _no_ray_token(environment)):
        lacks.append(f"a token for Ray, which listens beyond loopback ({why}; or set RAY_USE_TLS=1)")
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


def _no_ray_token(environment: Mapping[str, str]) -> str:
    """Why Ray would ask nobody for a token; empty if it does. A Ray that is missing says so at its start."""
    mode = environment.get(_RAY_MODE, "")
    if mode.lower() == "disabled":
        return f"{_RAY_MODE}={mode} lets everybody in"
    try:
        text = importlib.metadata.version("ray")
    except importlib.metadata.PackageNotFoundError:
        return ""
    if mode or tuple(int(number) for number in re.findall(r"[0-9]+", text)[:2]) >= _RAY_WITH_TOKENS:
        return ""
    return f"Ray {text} has none: install 2.52 or later"


def ray_token(cluster: Cluster, trust: Trust, salt: str) -> str:
    """Ray's token for a run, from what the hosts know and a salt that is the same for all.

    It is empty where they share no secret; where nothing leaves this machine, it is the salt.
    """
    if trust.token:
        return trust.proof("ray", salt)
    return salt if cluster.on_loopback or len(cluster.hosts) == 1 else ""


def ray_environment(environment: Mapping[str, str], token: str) -> dict[str, str]:
    """The environment of what speaks to the run's Ray; it keeps what the user has set.

    It always names a mode: without one, Ray asks for a token on a host that has ``~/.ray/auth_token``, a file
    that Ray itself may have left there, and for none on another.
    """
    own = dict(environment)
    if own.get(_RAY_MODE):
        return own
    if any(own.get(name) for name in _RAY_TOKENS):
        return own | {_RAY_MODE: "token"}
    return own | ({_RAY_MODE: "token", _RAY_TOKENS[0]: token} if token else {_RAY_MODE: "disabled"})
