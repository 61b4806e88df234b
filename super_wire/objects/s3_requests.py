"""Requests to S3, signed by AWS Signature Version 4.

The common part of all signatures within one second is computed once, so that signing takes a few
microseconds.
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

NO_BODY = hashlib.sha256(b"").hexdigest()
"""The digest of a request without a body."""

_PATH_SAFE = "/~"  # not encoded by S3 in a key, besides letters, digits and _.-
_AS_LISTED = "surrogateescape"  # bytes of a key that are not UTF-8


def object_path(prefix: str, key: str) -> str:
    """Return an object's URL path, percent-encoded as S3 signs it: once, with slashes."""
    return f"{prefix}/{quote(key, safe=_PATH_SAFE, errors=_AS_LISTED)}"


def query_of(fields: Mapping[str, str]) -> str:
    """Return the query of a URL, in the order in which it is signed."""
    return "&".join(
        f"{name}={quote(fields[name], safe='-_.~', errors=_AS_LISTED)}" for name in sorted(fields)
    )


def request_bytes(method: str, path: str, lines: Sequence[str]) -> bytes:
    """Return a whole request without a body."""
    return "\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", ""]).encode()


@dataclass(frozen=True, slots=True, repr=False)  # it is secret
class _Moment:
    """The common part of all signatures within one second."""

    second: int
    date_line: str
    scope: str
    key: bytes
    access_key: str
    more_lines: tuple[str, ...]


class Signer:
    """A builder of signed requests' header lines; threads may share it.

    Args:
        credentials: called once a second for the currently valid ones; ``None`` means no signatures.
        region: AWS's name of the region, such as ``us-east-1``.
        host: the value of the Host header, with the port if it is not the scheme's default.
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
        """Return the lines of the request's headers, including the signature.

        Args:
            method: the HTTP method.
            path: the result of :func:`object_path`.
            query: the result of :func:`query_of`.
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
        frozen = credentials()
        date = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(second))
        day = date[:8]
        key = f"AWS4{frozen.secret_key}".encode()
        for word in (day, self._region, "s3", "aws4_request"):
            key = hmac.digest(key, word.encode(), "sha256")
        scope = f"{day}/{self._region}/s3/aws4_request"
        token = (f"x-amz-security-token:{frozen.token}",) if frozen.token else ()
        headers = (*self._payer, *token)
        moment = _Moment(second, f"x-amz-date:{date}", scope, key, frozen.access_key or "", headers)
        self._moment = moment  # if two threads both compute it, the results are equal
        return moment
