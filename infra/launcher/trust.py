"""Whom the hosts of a run believe: what a run that leaves this machine needs, and the proof of a token.

Nothing of it is new: token and certificates are the coordinator's own (``SUPER_TOKEN``, ``SUPER_TLS_CERT``,
``SUPER_COORDINATOR_CA_FILE``), the cache's password is ``SUPER_CACHE_PASSWORD``, Ray's TLS is Ray's, and its
token :mod:`infra.launcher.ray_auth`'s. Beyond loopback all of it is asked for, unless ``--insecure`` says
that the network itself keeps others out.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from infra.launcher.ray_auth import lack_of_ray
from superdl.super_wire.coordinator_credentials import CoordinatorCredentials
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from infra.launcher.cluster import Cluster

__all__ = ["Trust", "check_trust", "trust_of", "written_certificate"]

_log = logging.getLogger(__name__)

_PEM = "-----BEGIN "


@dataclass(frozen=True, slots=True)
class Trust:
    """How the hosts of a run know one another.

    Attributes:
        token: what each proves to know; empty if nothing is asked for.
        server_tls: what the leader shows, if it encrypts.
        client_tls: how the others verify that, if they do.
        server_name: the name in the leader's certificate; its host's if it is empty.
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
        """Whether ``proof`` is that of somebody who knows the token too."""
        return hmac.compare_digest(_bytes_of(proof), self.proof(*words).encode())


def _bytes_of(text: str) -> bytes:
    return text.encode(errors="surrogatepass")  # a stranger may say half of a character


def check_trust(
    cluster: Cluster, environment: Mapping[str, str], *, insecure: bool, own_cache: bool, ray: bool
) -> None:
    """See that a run has what keeps others out: beyond this machine, and Ray, which listens there, always.

    Raises:
        ConfigError: all that is missing here.
    """
    lacks = [lack_of_ray(environment)] if ray and lack_of_ray(environment) else []
    if not cluster.on_loopback:
        lacks += _lacks_beyond(cluster, environment, own_cache=own_cache, ray=ray)
    if not lacks:
        return
    if not insecure:
        msg = (
            f"a run needs what keeps others out, and this host lacks {'; '.join(lacks)}. In "
            "a network that nobody else can reach, allow it by --insecure (SUPER_INSECURE=1)"
        )
        raise ConfigError(msg)
    _log.warning(
        "INSECURE: without %s: whoever reaches these hosts' ports may read the data and run code on them",
        "; without ".join(lacks),
    )


def _lacks_beyond(
    cluster: Cluster, environment: Mapping[str, str], *, own_cache: bool, ray: bool
) -> list[str]:
    lacks = []
    if not (environment.get("SUPER_TOKEN") or environment.get("SUPER_TOKEN_FILE")):
        lacks.append("a token (SUPER_TOKEN or SUPER_TOKEN_FILE, the same on every host)")
    if cluster.leads and not (environment.get("SUPER_TLS_CERT") and environment.get("SUPER_TLS_KEY")):
        lacks.append(f"a certificate for {cluster.leader} (SUPER_TLS_CERT and SUPER_TLS_KEY)")
    if own_cache and not environment.get("SUPER_CACHE_PASSWORD"):
        lacks.append("a password for the cache (SUPER_CACHE_PASSWORD, the same on every host)")
    if ray and environment.get("RAY_USE_TLS") != "1":
        lacks.append("TLS between Ray's nodes (RAY_USE_TLS=1 with Ray's certificates)")
    return lacks


def trust_of(cluster: Cluster, environment: Mapping[str, str], directory: Path) -> Trust:
    """What this host shows and believes.

    Args:
        cluster: who is here.
        environment: with the coordinator's settings and those of its clients.
        directory: a private one, for certificates that are given as text.

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
    """The files of certificate and key; those that are given as text are written, for this user alone."""
    files = []
    for name in ("SUPER_TLS_CERT", "SUPER_TLS_KEY"):
        given = environment.get(name, "")
        if _PEM in given:
            file = directory / f"{name.lower()}.pem"
            with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as opened:
                opened.write(given.replace("\\n", "\n"))
            given = str(file)
        files.append(given)
    return files[0], files[1]
