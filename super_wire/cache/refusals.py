"""Meanings of a cache's error replies and of connection failures, in messages that name the remedy.

Temporary ones make a client wait, others make it give up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from superdl.super_wire.errors import CacheError, CacheUnreachableError

if TYPE_CHECKING:
    import ssl

    from superdl.super_wire.cache.address import CacheAddress

_IS_THERE_TLS = " (is there TLS at that port? redis:// goes without)"
_NOT_TLS = frozenset({"WRONG_VERSION_NUMBER", "UNEXPECTED_EOF_WHILE_READING", "HTTP_REQUEST"})


class WrongPasswordError(CacheError):
    """The cache requires other credentials."""


def is_passing(text: str) -> bool:
    """Report whether an error reply describes a temporary state of the cache."""
    return text.startswith(
        ("LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY", "ERR max number of clients")
    )


def is_for_memory(text: str) -> bool:
    """Report whether an error reply means that the cache has no memory left for writes."""
    return text.startswith("OOM")


def wants_credentials(text: str) -> bool:
    """Report whether an error means missing, wrong or unnecessary credentials."""
    return text.startswith(("NOAUTH", "WRONGPASS", "ERR AUTH", "ERR Client sent AUTH"))


def is_redirection(text: str) -> bool:
    """Report whether an error reply names another node of the cluster."""
    return text.startswith(("MOVED ", "ASK "))


def refusal(address: CacheAddress | str, text: str) -> CacheError:
    """Return the error for an error reply: ``CacheUnreachableError`` if the state is temporary."""
    if is_passing(text):
        return CacheUnreachableError(f"the cache at {address} is not ready: {text}")
    if wants_credentials(text):
        return WrongPasswordError(
            f"the cache at {address} refused: {text} (set SUPER_CACHE_USERNAME and SUPER_CACHE_PASSWORD in "
            "this process's environment, as the cache wants them)"
        )
    remedy = ""
    if text.startswith("NOPERM"):
        remedy = (
            " (docs/reference.md has the rights of each user: a reader needs GET on super:r1:* and XADD on "
            "super:n1:*, in a cluster also CLUSTER SLOTS and ASKING)"
        )
    elif is_redirection(text):
        remedy = " (this is a node of a Redis Cluster that refused CLUSTER SLOTS: let the user call it)"
    return CacheError(f"the cache at {address} refused: {text}{remedy}")


def no_redis(address: CacheAddress, received: bytes, error: Exception) -> CacheError:
    """Return the error for a peer that does not send Redis replies."""
    remedy = " (that is TLS: write rediss://)" if received.startswith(b"\x15\x03") else ""
    return CacheError(f"what answers at {address} does not speak the Redis protocol: {error}{remedy}")


def tls_failure(address: CacheAddress, error: ssl.SSLError) -> CacheError:
    """Return the error for an OpenSSL failure, permanent if certificates do not match."""
    reason = error.reason or str(error)
    place = f"the cache at {address}"
    if reason == "CERTIFICATE_VERIFY_FAILED":
        detail = getattr(error, "verify_message", "") or reason
        return CacheError(
            f"{place} showed a certificate that was not accepted: {detail} (SUPER_CACHE_CA_FILE names the "
            "authorities to trust, in PEM; the certificate must be for the host in the address)"
        )
    if "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason):
        return CacheError(
            f"{place} did not accept our certificate: {reason} (SUPER_CACHE_CERT_FILE and "
            "SUPER_CACHE_KEY_FILE name one and its key)"
        )
    remedy = _IS_THERE_TLS if reason in _NOT_TLS else ""
    return CacheUnreachableError(f"{place} is not to be reached: TLS failed: {reason}{remedy}")


def unheard(address: CacheAddress, *, encrypted: bool) -> str:
    """Return a hint for a peer that sent nothing or hung up, also after a TLS handshake (``encrypted``)."""
    if encrypted:
        return (
            " (does it want a client's certificate? SUPER_CACHE_CERT_FILE and SUPER_CACHE_KEY_FILE name it)"
        )
    if address.tls:
        return _IS_THERE_TLS
    return "" if address.path else " (does it want TLS at that port? That is rediss://)"
