"""Reads ``s3://`` sources, each object in exactly the version that the catalog listed.

The lean client is asked first, since boto3 alone takes half as much CPU as decoding. What it does not get,
boto3 is asked for: so every retry, redirect and refusal is boto3's, and what is told of it are S3's words. An
object is asked for at most twice by the lean client and three times by boto3. Where no way leads to S3, boto3
would try each of its addresses three times: it is not asked, nor is S3 for the invocation's other objects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from superdl.lambda_prefetch.s3_boto3 import Boto3Client
from superdl.lambda_prefetch.s3_lean import Asked, LeanClient, LeanFailedError, give_up, lean_client
from superdl.lambda_prefetch.s3_refusals import unreachable

if TYPE_CHECKING:
    from collections.abc import Callable

    from superdl.lambda_prefetch.sources import Pending

__all__ = ["S3Source"]

# A GET waits some 20 ms for S3, and a small image decodes in a twentieth of one.
_LEAN_THREADS, _LEAN_IN_FLIGHT = 2, 16
_BOTO3_THREADS = 16


class S3Source:
    """One bucket.

    Args:
        bucket: its name.
        endpoint_url: the server, or empty for AWS or what boto3's own variables say.
        lean: whether the lean client may be used at all.
    """

    def __init__(self, bucket: str, *, endpoint_url: str = "", lean: bool = True) -> None:
        self._bucket = bucket
        self._endpoint_url = endpoint_url
        self._unreachable = ""
        self._lean: LeanClient | None = lean_client(bucket, endpoint_url) if lean else None

    @property
    def lean(self) -> bool:
        """Whether the lean client reads it."""
        return self._lean is not None

    @property
    def threads(self) -> int:
        """How many threads read it best."""
        return _BOTO3_THREADS if self._lean is None else _LEAN_THREADS

    @property
    def in_flight(self) -> int:
        """How many objects a thread may have begun."""
        return 1 if self._lean is None else _LEAN_IN_FLIGHT

    def begin(self, key: str, version: str) -> Asked | None:
        """Ask for an object; see :class:`superdl.lambda_prefetch.sources.ObjectSource`."""
        if self._lean is None or self._unreachable:
            return None
        try:
            return self._lean.begin(key, version.strip('"'))
        except LeanFailedError as failure:
            self._note(failure)
            return None

    def read(
        self,
        key: str,
        version: str,
        *,
        limit_bytes: int,
        reserve: Callable[[int], None],
        begun: Pending | None = None,
    ) -> bytes | bytearray:
        """The object's bytes; see :class:`superdl.lambda_prefetch.sources.ObjectSource`."""
        etag = version.strip('"')
        asked = begun if isinstance(begun, Asked) else None
        lean = self._lean if asked is None else asked.client
        if asked is None and self._unreachable:
            raise unreachable(self._unreachable)
        if lean is None:
            return self._through_boto3(key, etag, limit_bytes, reserve)
        reserved_bytes: list[int] = []

        def reserve_once(size_bytes: int) -> None:
            if not reserved_bytes:  # the version is the same, and so is the size
                reserved_bytes.append(size_bytes)
                reserve(size_bytes)

        try:
            return lean.finish(asked or lean.begin(key, etag), limit_bytes=limit_bytes, reserve=reserve_once)
        except LeanFailedError as failure:
            self._note(failure)
            if failure.unreachable:
                raise unreachable(str(failure)) from failure
            passing = failure.passing
        # Out of the handler, so that what was received of the body is gone before it comes again.
        data = self._through_boto3(key, etag, limit_bytes, reserve_once)
        if not passing:
            # boto3 was not refused: a redirect to another region, another way of signing, ...
            self._lean = None
            give_up(self._bucket, self._endpoint_url)
        return data

    def _note(self, failure: LeanFailedError) -> None:
        if failure.unreachable:
            self._unreachable = str(failure)

    def _through_boto3(self, key: str, etag: str, limit_bytes: int, reserve: Callable[[int], None]) -> bytes:
        client = Boto3Client(self._bucket, self._endpoint_url)
        return client.read(key, etag, limit_bytes=limit_bytes, reserve=reserve)
