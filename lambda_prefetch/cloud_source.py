"""Reads sources of other clouds than S3, each object in exactly the version that the catalog listed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from superdl.lambda_prefetch.sources import SampleFailedError, check_size
from superdl.super_wire.clouds import CloudError, open_cloud
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.request import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from superdl.lambda_prefetch.sources import Pending, Span

__all__ = ["CloudSource"]


class CloudSource:
    """One bucket.

    Raises:
        ConfigError: it is none, or this function lacks what reads it.
    """

    threads = 16  # each waits for one answer; the library's own threads receive it
    in_flight = 1

    def __init__(self, bucket: str, hosts: tuple[str, ...] | None = None) -> None:
        try:
            self._cloud = open_cloud(bucket, hosts)
        except CloudError as error:
            raise ConfigError(f"this function cannot read {bucket}: {error}") from error

    def begin(self, key: str, version: str, span: Span | None = None) -> Pending | None:  # noqa: ARG002  # see the protocol
        """Nothing: objects are not asked for ahead."""
        return None

    def read(
        self,
        key: str,
        version: str,
        *,
        limit_bytes: int,
        reserve: Callable[[int], None],
        begun: Pending | None = None,  # noqa: ARG002  # see the protocol
        span: Span | None = None,
    ) -> bytes:
        """The object's bytes; see :class:`superdl.lambda_prefetch.sources.ObjectSource`."""

        def before(size_bytes: int) -> None:
            check_size(size_bytes, limit_bytes)
            reserve(size_bytes)

        begin, end = (0, None) if span is None else (span.begin, span.end)
        try:
            return self._cloud.read(key, version=version.strip('"'), begin=begin, end=end, before=before)
        except CloudError as error:
            raise SampleFailedError(Outcome(error.fault.value), str(error)) from error
