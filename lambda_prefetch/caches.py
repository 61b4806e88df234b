"""The function's caches: opened with its credentials, and kept for the next invocation to find.

A few addresses are kept for each process, and one user at a time has a cache's connections. Where a secret of
AWS Secrets Manager has user and password, it is asked for when a connection first needs it, kept for some
minutes, and asked for again when the cache refuses what is kept. What the secret says is in no message, and
in no exception that one of ours was raised from.
"""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from superdl.super_wire.cache import CacheAddress, NodeConnections, WrongPasswordError
from superdl.super_wire.errors import CacheError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from superdl.lambda_prefetch.settings import FunctionSettings
    from superdl.super_wire.cache import Credentials

__all__ = ["CacheSecret", "close_idle_connections", "keep_cache", "take_cache", "warm_connection"]

_MAX_IDLE = 4
_REMEDY = (
    "a function may also have them from the secret that SUPER_CACHE_SECRET names; functions of the local "
    "executor have the coordinator's settings"
)
_MAX_AGE_S = 300.0
_MIN_INTERVAL_S = 5.0  # Secrets Manager is asked no more often, whatever fails
_CONNECT_TIMEOUT_S = 3
_READ_TIMEOUT_S = 5
_ATTEMPTS = 2
_ARN_PARTS = 7  # arn:aws:secretsmanager:region:account:secret:name
_FORM = 'a JSON object such as {"username": "super-function", "password": "..."}'
_DENIED = (
    "grant the function's role secretsmanager:GetSecretValue on it, and kms:Decrypt if a key of your own "
    "encrypts it"
)
_REMEDIES = {
    "AccessDeniedException": _DENIED,
    "403": _DENIED,  # in words that are not Secrets Manager's own, such as a proxy's
    "DecryptionFailure": "grant the function's role kms:Decrypt on the key that encrypts it",
    "InvalidRequestException": "restore it if it is marked for deletion",
    "ResourceNotFoundException": "SUPER_CACHE_SECRET is its ARN, or its name in this region",
}

# By process and address, the longest unused first.
_idle: dict[tuple[int, str], NodeConnections] = {}


def warm_connection(cache: str, settings: FunctionSettings) -> None:
    """Open a connection for the first invocation to find.

    Raises:
        CacheError: the cache is unreachable or refuses the credentials.
    """
    nodes = take_cache(cache, settings)
    if not nodes.connected:
        nodes.connect()
    keep_cache(cache, nodes)


def take_cache(cache: str, settings: FunctionSettings) -> NodeConnections:
    """What this process has kept of a cache, or a new one; the taker has it alone.

    Raises:
        ConfigError: the address is none, or the certificates cannot be used.
        CacheError: the secret that holds the password cannot be read.
    """
    kept = _idle.pop((os.getpid(), cache), None)
    if kept is None:
        return _make_cache(cache, settings)
    kept.renew()
    return kept


def keep_cache(cache: str, nodes: NodeConnections) -> None:
    """Put connections where the next invocation finds them: one cache per address, and few addresses."""
    replaced = _idle.pop((os.getpid(), cache), None)
    _idle[os.getpid(), cache] = nodes
    if replaced is None and len(_idle) > _MAX_IDLE:
        replaced = _idle.pop(next(iter(_idle)))
    if replaced is not None:
        replaced.close()


def close_idle_connections() -> None:
    """Close what is kept for the next invocation; it opens its own then."""
    while _idle:
        _idle.popitem()[1].close()


def _make_cache(cache: str, settings: FunctionSettings) -> NodeConnections:
    address, given = CacheAddress.parse(cache), settings.cache_credentials
    secret = _cache_secret(settings.cache_secret) if settings.cache_secret else None

    def renewed(refused: Credentials, error: WrongPasswordError) -> Credentials:
        """Other credentials where the password comes from a secret, which may have changed since."""
        found = secret.renewed(refused) if secret is not None else None
        if found is None:
            raise WrongPasswordError(f"{error}; {_REMEDY}") from error
        return found

    return NodeConnections(address, secret.credentials(given) if secret else given, renewed)


class CacheSecret:
    """One secret, by its ARN or its name in the function's own region, and what it said last."""

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self._clock = clock
        self._lock = threading.Lock()
        self._said: tuple[str, str] | None = None
        self._said_at_s = 0.0
        self._asked_at_s = -_MIN_INTERVAL_S
        self._failure = ""
        self._client: Any = None

    def credentials(self, given: Credentials) -> Credentials:
        """What to be let in with now; certificates are ``given``.

        Raises:
            CacheError: the secret cannot be read, or holds no password, and nothing is known of it.
        """
        with self._lock:
            if self._said is None or self._clock() - self._said_at_s >= _MAX_AGE_S:
                self._ask()
            return self._with_secret(given)

    def renewed(self, refused: Credentials) -> Credentials | None:
        """What to try in place of what the cache has just refused; ``None`` if the secret says the same.

        Raises:
            CacheError: the secret cannot be read.
        """
        with self._lock:
            if self._said == (refused.username, refused.password):
                self._ask()
                if self._failure:
                    raise CacheError(self._failure)
            found = self._with_secret(refused)
        return None if found == refused else found

    def _with_secret(self, given: Credentials) -> Credentials:
        if self._said is None:
            raise CacheError(self._failure)
        username, password = self._said
        return replace(given, username=username, password=password)

    def _ask(self) -> None:
        """Ask Secrets Manager, unless that was done a moment ago; a failure leaves what was known."""
        if self._clock() - self._asked_at_s < _MIN_INTERVAL_S:
            return
        try:
            self._said = self._read()
            self._said_at_s, self._failure = self._clock(), ""
        except CacheError as error:
            self._failure = str(error)
        finally:
            self._asked_at_s = self._clock()

    def _read(self) -> tuple[str, str]:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            if self._client is None:
                self._client = _make_client(self.name)
            text = self._client.get_secret_value(SecretId=self.name).get("SecretString", "")
        except ClientError as error:
            raise self._refused(error.response.get("Error", {})) from error
        except (BotoCoreError, ValueError) as error:  # an endpoint that is no URL is a ValueError
            raise self._unreachable(error) from error
        try:
            content = json.loads(text)
        except ValueError:  # not chained: it carries the text along
            content = None
        if not isinstance(content, dict):
            raise CacheError(f"the secret {self.name} is not {_FORM}")
        username, password = content.get("username", ""), content.get("password", "")
        if not (isinstance(username, str) and isinstance(password, str) and password):
            raise CacheError(f"the secret {self.name} has no password: it is {_FORM}")
        return username, password

    def _refused(self, answer: Mapping[str, Any]) -> CacheError:
        code, text = str(answer.get("Code", "")), str(answer.get("Message", ""))
        remedy = _REMEDIES.get(code, "the function gets its cache password there")
        return CacheError(f"Secrets Manager does not tell the secret {self.name} ({code}: {text}): {remedy}")

    def _unreachable(self, error: Exception) -> CacheError:
        from botocore import exceptions

        remedy = (
            "a function in a VPC needs an interface endpoint for secretsmanager there (or a NAT), "
            "and a security group that lets port 443 out to it and in there"
        )
        if isinstance(error, exceptions.NoRegionError):
            remedy = "set AWS_REGION, or let SUPER_CACHE_SECRET be its ARN"
        elif isinstance(error, (exceptions.NoCredentialsError, exceptions.PartialCredentialsError)):
            remedy = "give the function a role"
        return CacheError(f"Secrets Manager did not answer for the secret {self.name} ({error}): {remedy}")


def _make_client(name: str) -> Any:
    import boto3
    from botocore.config import Config

    parts = name.split(":")
    region = parts[3] if len(parts) >= _ARN_PARTS and parts[0] == "arn" else None
    config = Config(
        connect_timeout=_CONNECT_TIMEOUT_S,
        read_timeout=_READ_TIMEOUT_S,
        retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
        max_pool_connections=1,
    )
    return boto3.session.Session().client("secretsmanager", region_name=region, config=config)


_secrets: dict[tuple[int, str], CacheSecret] = {}
_secrets_lock = threading.Lock()


def _cache_secret(name: str) -> CacheSecret:
    """This process's one of that name; boto3's clients may be shared by threads, but not over a fork."""
    with _secrets_lock:
        return _secrets.setdefault((os.getpid(), name), CacheSecret(name))
