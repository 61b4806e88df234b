"""Reads the objects of buckets, each in exactly the version that the catalog listed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from superdl.lambda_prefetch.sources import SampleFailedError, check_size
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.objects import ObjectError, open_bucket
from superdl.super_wire.request import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from superdl.super_wire.objects import Pending, Span

__all__ = ["BucketSource"]


class BucketSource:
    """One bucket. Once no way leads to it, nothing more is asked of it.

    Raises:
        ConfigError: it is none, or this function lacks what reads it.
    """

    def __init__(self, bucket: str, hosts: tuple[str, ...] | None = None) -> None:
        try:
            self._bucket = open_bucket(bucket, hosts)
        except ObjectError as error:
            raise ConfigError(f"this function cannot read {bucket}: {error}") from error
        self._unreachable: ObjectError | None = None

    @property
    def threads(self) -> int:
        """How many threads read it best."""
        return self._bucket.threads

    @property
    def in_flight(self) -> int:
        """How many objects a thread may have begun."""
        return self._bucket.in_flight

    def begin(self, key: str, version: str, span: Span | None = None) -> Pending | None:
        """Request an object ahead; see :class:`superdl.lambda_prefetch.sources.ObjectSource`."""
        if self._unreachable is not None:
            return None
        try:
            return self._bucket.begin(key, version.strip('"'), span)
        except ObjectError as error:  # reading it meets the same, and reports it
            self._note(error)
            return None

    def read(
        self,
        key: str,
        version: str,
        *,
        limit_bytes: int,
        reserve: Callable[[int], None],
        begun: Pending | None = None,
        span: Span | None = None,
    ) -> bytes | bytearray:
        """The object's bytes; see :class:`superdl.lambda_prefetch.sources.ObjectSource`."""

        def before(size_bytes: int) -> None:
            check_size(size_bytes, limit_bytes)
            reserve(size_bytes)

        try:
            if self._unreachable is not None and begun is None:
                raise self._unreachable
            return self._bucket.read(key, version=version.strip('"'), span=span, before=before, begun=begun)
        except ObjectError as error:
            self._note(error)
            raise SampleFailedError(Outcome(error.fault.value), str(error)) from error

    def _note(self, error: ObjectError) -> None:
        if error.unreachable:
            self._unreachable = error
