"""Reading one sample from its source, and the error if that fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

from superdl.super_wire.objects import ObjectError
from superdl.super_wire.request import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from superdl.super_wire.objects import Bucket, Pending, Span


class SampleFailedError(Exception):
    """One sample cannot be produced now, or ever; the pipeline puts its name before ``why``.

    ``reason`` is the tombstone's short code, empty if the object's bytes are not at fault.
    """

    def __init__(self, outcome: Outcome, why: str, *, reason: str = "") -> None:
        super().__init__(why)
        # Without a reason nothing is written to the cache: the sample is retried.
        self.outcome, self.why, self.reason = outcome, why, reason


def spoiled(reason: str, why: str) -> SampleFailedError:
    """Return a permanent failure: this version's bytes will never give a sample.

    ``reason``: ``empty``, ``not_an_image``, ``undecodable``, ``too_large``, ``too_small`` or
    ``unequal``.
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
    """Return the bytes of one object in exactly this version, or of a span of it; fewer if it ends earlier.

    More than ``limit_bytes`` are refused before they are read. ``reserve`` is called once, with
    the size in bytes, before that; it may wait. ``begun`` is the result of :meth:`Bucket.begin`
    for this key, version and span; it is consumed.
    """

    def before(size_bytes: int) -> None:
        if size_bytes > limit_bytes:
            raise spoiled("too_large", f"its {size_bytes} bytes are over the limit of {limit_bytes}")
        reserve(size_bytes)

    try:
        return bucket.read(key, version=version.strip('"'), span=span, before=before, begun=begun)
    except ObjectError as error:
        raise SampleFailedError(Outcome(error.fault.value), str(error)) from error
