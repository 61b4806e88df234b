"""The function's cache connections: opened with its credentials and kept for the next invocation.

Each process keeps a few addresses, and a cache's connections have one user at a time. If a secret of AWS
Secrets Manager holds user and password, it is read when a connection first needs it, and again when the cache
refuses them. The secret's content appears in no message, and in no exception that one of ours was raised
from.
"""

from __future__ import annotations

import functools
import json
import os
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from superdl.super_wire.cache import CacheAddress, NodeConnections, WrongPasswordError
from superdl.super_wire.errors import CacheError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from superdl.lambda_prefetch.settings import FunctionSettings
    from superdl.super_wire.cache import Credentials

__all__ = ["close_idle_connections", "keep_cache", "take_cache", "warm_connection"]

_MAX_IDLE = 4
_REMEDY = (
    "a function may also have them from the secret that SUPER_CACHE_SECRET names; functions of the local "
    "executor have the coordinator's settings"
)
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
    "403": _DENIED,  # from something other than Secrets Manager, such as a proxy
    "DecryptionFailure": "grant the function's role kms:Decrypt on the key that encrypts it",
    "InvalidRequestException": "restore it if it is marked for deletion",
    "ResourceNotFoundException": "SUPER_CACHE_SECRET is its ARN, or its name in this region",
}

# By process and address, least recently used first. A fork must not share its parent's sockets.
_idle: dict[tuple[int, str], NodeConnections] = {}


def warm_connection(cache: str, settings: FunctionSettings) -> None:
    """Open a connection for the first invocation to use.

    Raises:
        CacheError: the cache is unreachable or refuses the credentials.
    """
    nodes = take_cache(cache, settings)
    if not nodes.connected:
        nodes.connect()
    keep_cache(cache, nodes)


def take_cache(cache: str, settings: FunctionSettings) -> NodeConnections:
    """Return this process's kept connections to a cache, or new ones, for the caller's sole use.

    Raises:
        ConfigError: the address is invalid, or the certificates cannot be used.
        CacheError: the secret that holds the password cannot be read.
    """
    kept = _idle.pop((os.getpid(), cache), None)
    if kept is None:
        return _make_cache(cache, settings)
    kept.renew()
    return kept


def keep_cache(cache: str, nodes: NodeConnections) -> None:
    """Keep connections for the next invocation: one cache per address, and few addresses."""
    replaced = _idle.pop((os.getpid(), cache), None)
    _idle[os.getpid(), cache] = nodes
    if replaced is None and len(_idle) > _MAX_IDLE:
        # Evict the least recently used address.
        replaced = _idle.pop(next(iter(_idle)))
    if replaced is not None:
        replaced.close()


def close_idle_connections() -> None:
    """Close all kept connections; the next invocation opens its own."""
    while _idle:
        _idle.popitem()[1].close()


def _make_cache(cache: str, settings: FunctionSettings) -> NodeConnections:
    address, name = CacheAddress.parse(cache), settings.cache_secret

    def renewed(refused: Credentials, error: WrongPasswordError) -> Credentials:
        """Return other credentials if they come from a secret, which may have changed."""
        # The cached secret was just refused.
        _read_secret.cache_clear()
        credentials = _with_secret(refused, name)
        if credentials == refused:
            raise WrongPasswordError(f"{error}; {_REMEDY}") from error
        return credentials

    return NodeConnections(address, _with_secret(settings.cache_credentials, name), renewed)


def _with_secret(given: Credentials, name: str) -> Credentials:
    """Return credentials from a secret; ``given`` if the secret's name is empty."""
    if not name:
        return given
    username, password = _read_secret(name, os.getpid())
    return replace(given, username=username, password=password)


@functools.lru_cache(maxsize=_MAX_IDLE)
def _read_secret(name: str, _process: int) -> tuple[str, str]:
    """Read user and password from a secret, by its ARN or its name in the function's own region.

    Raises:
        CacheError: the secret cannot be read, or holds no password.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        with closing(_make_client(name)) as client:
            text = client.get_secret_value(SecretId=name).get("SecretString", "")
    except ClientError as error:
        raise _refused(name, error.response.get("Error", {})) from error
    except (BotoCoreError, ValueError) as error:  # ValueError: the endpoint is no URL
        raise _unreachable(name, error) from error
    try:
        content = json.loads(text)
    except ValueError:  # not chained: the error contains the text
        content = None
    if not isinstance(content, dict):
        raise CacheError(f"the secret {name} is not {_FORM}")
    username, password = content.get("username", ""), content.get("password", "")
    if not (isinstance(username, str) and isinstance(password, str) and password):
        raise CacheError(f"the secret {name} has no password: it is {_FORM}")
    return username, password


def _refused(name: str, answer: Mapping[str, Any]) -> CacheError:
    code, text = str(answer.get("Code", "")), str(answer.get("Message", ""))
    remedy = _REMEDIES.get(code, "the function gets its cache password there")
    return CacheError(f"Secrets Manager does not tell the secret {name} ({code}: {text}): {remedy}")


def _unreachable(name: str, error: Exception) -> CacheError:
    from botocore import exceptions

    remedy = (
        "a function in a VPC needs an interface endpoint for secretsmanager there (or a NAT), "
        "and a security group that lets port 443 out to it and in there"
    )
    if isinstance(error, exceptions.NoRegionError):
        remedy = "set AWS_REGION, or let SUPER_CACHE_SECRET be its ARN"
    elif isinstance(error, (exceptions.NoCredentialsError, exceptions.PartialCredentialsError)):
        remedy = "give the function a role"
    return CacheError(f"Secrets Manager did not answer for the secret {name} ({error}): {remedy}")


def _make_client(name: str) -> Any:
    import boto3
    from botocore.config import Config

    # A secret named by its ARN may be in another region than the function.
    parts = name.split(":")
    region = parts[3] if len(parts) >= _ARN_PARTS and parts[0] == "arn" else None
    config = Config(
        connect_timeout=_CONNECT_TIMEOUT_S,
        read_timeout=_READ_TIMEOUT_S,
        retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
        max_pool_connections=1,
    )
    return boto3.session.Session().client("secretsmanager", region_name=region, config=config)
