"""Requests to S3, signed by AWS Signature Version 4.

What all signatures of one second share is made once, so that signing takes a few microseconds.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from botocore.credentials import ReadOnlyCredentials

__all__ = ["NO_BODY", "Signer", "object_path", "query_of", "request_bytes"]

NO_BODY = hashlib.sha256(b"").hexdigest()
"""The digest of a request without a body."""

_PATH_SAFE = "/~"  # what S3 leaves as it is in a key, beside letters, digits and _.-
_AS_LISTED = "surrogateescape"  # bytes of a key that are not UTF-8


def object_path(prefix: str, key: str) -> str:
    """The path of an object's URL, percent-encoded as S3 signs it: once, slashes kept, nothing normalised."""
    return f"{prefix}/{quote(key, safe=_PATH_SAFE, errors=_AS_LISTED)}"


def query_of(fields: Mapping[str, str]) -> str:
    """The query of a URL, in the order in which it is signed."""
    return "&".join(
        f"{name}={quote(fields[name], safe='-_.~', errors=_AS_LISTED)}" for name in sorted(fields)
    )


def request_bytes(method: str, path: str, lines: Sequence[str]) -> bytes:
    """A whole request without a body."""
    return "\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", ""]).encode()


@dataclass(frozen=True, slots=True, repr=False)  # it is secret
class _Moment:
    """What all signatures of one second share."""

    second: int
    date_line: str
    scope: str
    key: bytes
    access_key: str
    more_lines: tuple[str, ...]


class Signer:
    """Makes the lines of signed requests' headers; threads may share it.

    Args:
        credentials: called once a second, and returns what is valid then; ``None``: nothing is signed.
        region: AWS's name of the region, as ``us-east-1``.
        host: the value of the Host header, with the port if it is not the scheme's own.
        requester_pays: whether the account of the credentials pays for requests and traffic.
    """

    def __init__(
        self,
        credentials: Callable[[], ReadOnlyCredentials] | None,
        *,
        region: str,
        host: str,
        requester_pays: bool = False,
    ) -> None:
        self._credentials = credentials
        self._region = region
        self._host_line = f"host:{host}"
        self._payer = ("x-amz-request-payer:requester",) if requester_pays else ()
        self._moment: _Moment | None = None

    def lines(
        self,
        method: str,
        path: str,
        query: str = "",
        *,
        headers: Sequence[str] = (),
        before_host: Sequence[str] = (),
        digest: str = NO_BODY,
    ) -> list[str]:
        """The lines of the request's headers, the signature with them.

        Args:
            method: as HTTP has it.
            path: as :func:`object_path` returns it.
            query: as :func:`query_of` returns it.
            headers: more lines such as ``range:bytes=0-9``, sorted, whose names come after ``host`` and
                before ``x-amz``.
            before_host: such lines whose names come before ``host``.
            digest: SHA-256 of the body.

        Raises:
            ObjectError: there are no credentials, or they could not be refreshed.
        """
        if self._credentials is None:
            return [*before_host, self._host_line, *headers, *self._payer]
        now = self._now(self._credentials)
        lines = [*before_host, self._host_line, *headers, f"x-amz-content-sha256:{digest}", now.date_line]
        lines += now.more_lines
        names = ";".join([line[: line.index(":")] for line in lines])
        signed = "\n".join(lines)
        canonical = f"{method}\n{path}\n{query}\n{signed}\n\n{names}\n{digest}"
        hashed = hashlib.sha256(canonical.encode()).hexdigest()
        to_sign = f"AWS4-HMAC-SHA256\n{now.date_line[11:]}\n{now.scope}\n{hashed}"
        signature = hmac.digest(now.key, to_sign.encode(), "sha256").hex()
        lines.append(
            f"authorization:AWS4-HMAC-SHA256 Credential={now.access_key}/{now.scope}, "
            f"SignedHeaders={names}, Signature={signature}"
        )
        return lines

    def _now(self, credentials: Callable[[], ReadOnlyCredentials]) -> _Moment:
        second, moment = int(time.time()), self._moment
        if moment is not None and moment.second == second:
            return moment
        found = credentials()
        date = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(second))
        day = date[:8]
        key = f"AWS4{found.secret_key}".encode()
        for word in (day, self._region, "s3", "aws4_request"):
            key = hmac.digest(key, word.encode(), "sha256")
        scope = f"{day}/{self._region}/s3/aws4_request"
        token = (f"x-amz-security-token:{found.token}",) if found.token else ()
        more = (*self._payer, *token)
        moment = _Moment(second, f"x-amz-date:{date}", scope, key, found.access_key or "", more)
        self._moment = moment  # two threads may both make it, and equal
        return moment
