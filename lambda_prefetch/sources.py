"""Reading one sample from its source, and the error if that fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

from superdl.super_wire.objects import ObjectError
from superdl.super_wire.request import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from superdl.super_wire.objects import Bucket, Pending, Span

__all__ = ["SampleFailedError", "read_object", "spoiled"]


class SampleFailedError(Exception):
    """One sample cannot be produced now, or ever; the pipeline puts its name before ``why``.

    ``reason`` is the tombstone's short code. It is empty if the object's bytes are not at fault: such
    failures are retried, so nothing about them is written to the cache.
    """

    def __init__(self, outcome: Outcome, why: str, *, reason: str = "") -> None:
        super().__init__(why)
        self.outcome, self.why, self.reason = outcome, why, reason


def spoiled(reason: str, why: str) -> SampleFailedError:
    """Return a permanent failure: this version's bytes will never give a sample.

    ``reason`` is ``empty``, ``not_an_image``, ``undecodable``, ``too_large``, ``too_small`` or ``unequal``.
    """
    return SampleFailedError(Outcome.TOMBSTONE, why, reason=reason)


def read_object(
    bucket: Bucket,
    key: str,
    version: str,
    *,
    limit_bytes: int,
    reserve: Callable[[int], None],
    begun: Pending | None = None,
    span: Span | None = None,
) -> bytes | bytearray:
    """Return the bytes of one object in exactly this version, or of a span of it.

    Args:
        bucket: the bucket that has it.
        key: the object's key.
        version: as listed by the catalog.
        limit_bytes: larger objects, or spans, are refused before their bytes are read.
        reserve: called once, with the size in bytes, before they are read; it may wait.
        begun: the result of :meth:`Bucket.begin` for this key, version and span; it is consumed.
        span: fewer bytes are returned if the object ends earlier; ``None`` means all.

    Raises:
        SampleFailedError: the object is missing, changed, refused or too large, or the source failed.
    """

    def before(size_bytes: int) -> None:
        if size_bytes > limit_bytes:
            raise spoiled("too_large", f"its {size_bytes} bytes are over the limit of {limit_bytes}")
        reserve(size_bytes)

    try:
        return bucket.read(key, version=version.strip('"'), span=span, before=before, begun=begun)
    except ObjectError as error:
        raise SampleFailedError(Outcome(error.fault.value), str(error)) from error
