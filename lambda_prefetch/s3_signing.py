"""Signs GETs of objects with AWS Signature Version 4.

What the signatures of one second have in common is made once: date, scope and signing key. The rest is two
hashes: 4 microseconds. Credentials come from botocore's chain and are refreshed as botocore does; its signer
is the standard that the tests compare with. Sending the request is
:mod:`superdl.lambda_prefetch.s3_connection`'s.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Callable

    from botocore.credentials import Credentials

__all__ = ["Signer", "object_path"]

_NO_BODY = hashlib.sha256(b"").hexdigest()
_PATH_SAFE = "/~"  # what S3 leaves as it is in a key, beside letters, digits and _.-


def object_path(prefix: str, key: str) -> str:
    """The path of an object's URL, percent-encoded as S3 signs it: once, slashes kept, nothing normalised."""
    return f"{prefix}/{quote(key, safe=_PATH_SAFE)}"


@dataclass(frozen=True, slots=True)
class _Moment:
    """What all signatures of one second share."""

    second: int
    date: str
    scope: str
    key: bytes
    access_key: str
    token: str


class Signer:
    """Makes whole signed requests; threads may share it.

    Args:
        credentials: botocore's; they are asked once a second, and refresh themselves when asked.
        region: AWS's name of the region, as ``us-east-1``.
        host: the value of the Host header, with the port if it is not the scheme's own.
        clock: Unix time in seconds.
    """

    def __init__(
        self, credentials: Credentials, *, region: str, host: str, clock: Callable[[], float] = time.time
    ) -> None:
        self._credentials = credentials
        self._region = region
        self._host = host
        self._clock = clock
        self._moment: _Moment | None = None

    def get(self, path: str, etag: str) -> bytes:
        """The request, up to and with the empty line, for an object in one version.

        Args:
            path: :func:`object_path`'s.
            etag: without its quotes.

        Raises:
            BotoCoreError: credentials could not be refreshed.
        """
        now = self._now()
        token_line, token_name = "", ""
        if now.token:
            token_line, token_name = f"x-amz-security-token:{now.token}\n", ";x-amz-security-token"
        signed_lines = (
            f'host:{self._host}\nif-match:"{etag}"\nx-amz-content-sha256:{_NO_BODY}\n'
            f"x-amz-date:{now.date}\n{token_line}"
        )
        names = f"host;if-match;x-amz-content-sha256;x-amz-date{token_name}"
        canonical = f"GET\n{path}\n\n{signed_lines}\n{names}\n{_NO_BODY}"
        digest = hashlib.sha256(canonical.encode()).hexdigest()
        to_sign = f"AWS4-HMAC-SHA256\n{now.date}\n{now.scope}\n{digest}"
        signature = hmac.digest(now.key, to_sign.encode(), "sha256").hex()
        # The lines that are signed are lines of the request as well: HTTP does not mind a name's case.
        return (
            f"GET {path} HTTP/1.1\n{signed_lines}"
            f"authorization:AWS4-HMAC-SHA256 Credential={now.access_key}/{now.scope}, "
            f"SignedHeaders={names}, Signature={signature}\n\n"
        ).replace("\n", "\r\n").encode()  # fmt: skip

    def _now(self) -> _Moment:
        second = int(self._clock())
        moment = self._moment
        if moment is None or moment.second != second:
            moment = self._moment = self._make_moment(second)  # two threads may both make it, and equal
        return moment

    def _make_moment(self, second: int) -> _Moment:
        found = self._credentials.get_frozen_credentials()
        date = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(second))
        day = date[:8]
        key = f"AWS4{found.secret_key}".encode()
        for word in (day, self._region, "s3", "aws4_request"):
            key = hmac.digest(key, word.encode(), "sha256")
        return _Moment(
            second=second,
            date=date,
            scope=f"{day}/{self._region}/s3/aws4_request",
            key=key,
            access_key=found.access_key or "",
            token=found.token or "",
        )
