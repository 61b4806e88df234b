"""The Redis protocol, RESP2, and the meaning of its errors. This module does no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from superdl.super_wire.errors import CacheError, CacheUnreachableError

if TYPE_CHECKING:
    import ssl

    from superdl.super_wire.cache.address import CacheAddress


CRLF = b"\r\n"
# The largest value that Redis can store.
MAX_BULK_BYTES = 512 * 2**20
# The maximum length of a line. Bulk strings are not lines.
MAX_LINE_BYTES = 65536
MAX_DEPTH = 16
MAX_ELEMENTS = 2**20


class MalformedReplyError(ValueError):
    """The bytes are not a valid reply, or exceed a limit. The stream can no longer be used."""


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """An error reply: a code such as ``MOVED`` or ``ERR``, followed by text."""

    text: str


Reply: TypeAlias = "bytes | int | list[Reply] | ErrorReply | None"


class _TooShortError(Exception):
    """The reply continues beyond the received bytes."""


def encode_command(*words: bytes) -> bytes:
    """Encode a command as an array of bulk strings."""
    parts = [b"*%d\r\n" % len(words)]
    parts += [b"$%d\r\n%b\r\n" % (len(word), word) for word in words]
    return b"".join(parts)


def parse_reply(data: bytes | bytearray | memoryview, at: int = 0) -> tuple[Reply, int] | None:
    r"""Return the reply at ``at`` and the start of the next one, or ``None`` if more bytes are needed.

    >>> parse_reply(b"*2\r\n:7\r\n$2\r\nhi\r\n")
    ([7, b'hi'], 16)

    Raises ``MalformedReplyError`` if no further bytes could complete the reply.
    """
    try:
        return _reply(bytes(data), at, 1)  # a memoryview has no find
    except _TooShortError:
        return None


def _reply(data: bytes, at: int, depth: int) -> tuple[Reply, int]:
    mark, end = data[at : at + 1], data.find(CRLF, at, at + MAX_LINE_BYTES)
    # Detect other protocols at once: they may never send a line break.
    if mark and mark not in (b"+", b"-", b":", b"$", b"*"):
        raise _malformed("unknown type", data, at)
    if end < 0:
        if len(data) - at > MAX_LINE_BYTES:
            raise _malformed(f"the first line is longer than {MAX_LINE_BYTES} bytes", data, at)
        raise _TooShortError
    line, body = data[at + 1 : end], end + len(CRLF)
    reply: Reply = line
    if mark == b"-":
        reply = ErrorReply(line.decode(errors="replace"))
    elif mark == b":":
        signed = line[:1] in (b"+", b"-")
        number = _count(data, at, line[signed:], 2**64)
        reply = -number if line[:1] == b"-" else number
    elif mark in (b"$", b"*") and line == b"-1":
        reply = None
    elif mark == b"$":
        reply, body = _bulk(data, at, line, body)
    elif mark == b"*":
        reply, body = _array(data, at, line, body, depth)
    return reply, body


def _bulk(data: bytes, at: int, line: bytes, body: int) -> tuple[bytes, int]:
    end = body + _count(data, at, line, MAX_BULK_BYTES)
    mark = data[end : end + len(CRLF)]
    if len(mark) < len(CRLF) and CRLF.startswith(mark):
        raise _TooShortError
    if mark != CRLF:
        raise _malformed("a string is not followed by CRLF", data, at)
    return data[body:end], end + len(CRLF)


def _array(data: bytes, at: int, line: bytes, body: int, depth: int) -> tuple[list[Reply], int]:
    count = _count(data, at, line, MAX_ELEMENTS)
    if depth > MAX_DEPTH:
        raise _malformed(f"arrays are nested more than {MAX_DEPTH} deep", data, at)
    items = []
    for _ in range(count):
        item, body = _reply(data, body, depth + 1)
        items.append(item)
    return items, body


def _count(data: bytes, at: int, digits: bytes, limit: int) -> int:
    if not digits.isdigit() or len(digits) > len(str(limit)) or int(digits) > limit:
        raise _malformed(f"expected a number up to {limit}", data, at)
    return int(digits)


def _malformed(reason: str, data: bytes, at: int) -> MalformedReplyError:
    return MalformedReplyError(f"invalid reply {data[at : at + 40]!r} ({reason})")


_TLS_HINT = " (does that port use TLS? If not, use redis://)"
_NOT_TLS = frozenset({"WRONG_VERSION_NUMBER", "UNEXPECTED_EOF_WHILE_READING", "HTTP_REQUEST"})


class WrongPasswordError(CacheError):
    """The cache requires different credentials."""


def is_passing(text: str) -> bool:
    """Return whether an error reply reports a temporary state of the cache."""
    return text.startswith(
        ("LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY", "ERR max number of clients")
    )


def is_for_memory(text: str) -> bool:
    """Return whether an error reply means that the cache is out of memory."""
    return text.startswith("OOM")


def wants_credentials(text: str) -> bool:
    """Return whether an error reply is about missing, wrong or unnecessary credentials."""
    return text.startswith(("NOAUTH", "WRONGPASS", "ERR AUTH", "ERR Client sent AUTH"))


def is_redirection(text: str) -> bool:
    """Return whether an error reply redirects to another node of the cluster."""
    return text.startswith(("MOVED ", "ASK "))


def refusal(address: CacheAddress | str, text: str) -> CacheError:
    """Return the exception for an error reply. For a temporary state, it is ``CacheUnreachableError``."""
    if is_passing(text):
        return CacheUnreachableError(f"the cache at {address} is not ready: {text}")
    if wants_credentials(text):
        return WrongPasswordError(
            f"the cache at {address} refused the request: {text} (in this process's environment, set "
            "SUPER_CACHE_USERNAME and SUPER_CACHE_PASSWORD to the credentials that the cache requires)"
        )
    remedy = ""
    if text.startswith("NOPERM"):
        remedy = (
            " (docs/reference.md lists each user's rights: a reader needs GET on super:r1:* and XADD on "
            "super:n1:*, and in a cluster also CLUSTER SLOTS and ASKING)"
        )
    elif is_redirection(text):
        remedy = " (this Redis Cluster node refused CLUSTER SLOTS: allow this user to run it)"
    return CacheError(f"the cache at {address} refused the request: {text}{remedy}")


def no_redis(address: CacheAddress, received: bytes, error: Exception) -> CacheError:
    """Return the exception for a peer that does not speak the Redis protocol."""
    remedy = " (this is TLS: use rediss://)" if received.startswith(b"\x15\x03") else ""
    return CacheError(f"the server at {address} does not speak the Redis protocol: {error}{remedy}")


def tls_failure(address: CacheAddress, error: ssl.SSLError) -> CacheError:
    """Return the exception for an OpenSSL failure, a permanent one if a certificate was refused."""
    reason = error.reason or str(error)
    peer = f"the cache at {address}"
    if reason == "CERTIFICATE_VERIFY_FAILED":
        detail = getattr(error, "verify_message", "") or reason
        return CacheError(
            f"{peer} has a certificate that is not trusted: {detail} (set SUPER_CACHE_CA_FILE to a PEM "
            "file of trusted authorities; the certificate must be valid for the host in the address)"
        )
    if "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason):
        return CacheError(
            f"{peer} rejected the client certificate: {reason} (set SUPER_CACHE_CERT_FILE and "
            "SUPER_CACHE_KEY_FILE to a certificate that it accepts, and its key)"
        )
    remedy = _TLS_HINT if reason in _NOT_TLS else ""
    return CacheUnreachableError(f"{peer} cannot be reached because TLS failed: {reason}{remedy}")


def silence_hint(address: CacheAddress, *, encrypted: bool) -> str:
    """Return a hint about a peer that sent nothing or hung up, after a TLS handshake if ``encrypted``."""
    if encrypted:
        return " (does it require a client certificate? Set SUPER_CACHE_CERT_FILE and SUPER_CACHE_KEY_FILE)"
    if address.tls:
        return _TLS_HINT
    return "" if address.path else " (does that port require TLS? Use rediss://)"
