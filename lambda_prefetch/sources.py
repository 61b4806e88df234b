"""What the pipeline reads samples from, and how one sample fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

from superdl.super_wire.objects import ObjectError
from superdl.super_wire.request import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from superdl.super_wire.objects import Bucket, Pending, Span

__all__ = ["ObjectSource", "SampleFailedError", "spoiled"]


class SampleFailedError(Exception):
    """One sample cannot be produced now, or ever; the pipeline puts its name before ``why``.

    ``reason`` is the tombstone's short code, and empty where the failure is not the fault of the object's
    bytes: those failures are tried again, so nothing about them is written to the cache.
    """

    def __init__(self, outcome: Outcome, why: str, *, reason: str = "") -> None:
        super().__init__(why)
        self.outcome = outcome
        self.why = why
        self.reason = reason


def spoiled(reason: str, why: str) -> SampleFailedError:
    """A failure for good: this version's bytes will never give a sample.

    ``reason`` is ``empty``, ``not_an_image``, ``undecodable``, ``too_large``, ``too_small`` or ``unequal``.
    """
    return SampleFailedError(Outcome.TOMBSTONE, why, reason=reason)


class ObjectSource:
    """Reads the objects of one bucket; called by several threads at once.

    Once no way leads to the bucket, nothing more is asked of it.
    """

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
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
        """Request an object, or a span of it, whose bytes :meth:`read` is to return later.

        ``None`` if it cannot be requested ahead; :meth:`read` returns it, or says why not.
        """
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
        """The bytes of one object in exactly this version, or of a span of it.

        Args:
            key: the object's key.
            version: what the catalog listed.
            limit_bytes: larger objects, or spans, are refused before their bytes are read.
            reserve: called once, with the size in bytes, before they are read; it may wait.
            begun: what :meth:`begin` returned for this key, version and span; it is used up.
            span: fewer bytes come where the object ends before; ``None``: all.

        Raises:
            SampleFailedError: the object is missing, changed, refused or too large, or the source failed.
        """

        def before(size_bytes: int) -> None:
            if size_bytes > limit_bytes:
                why = f"its {size_bytes} bytes are over the limit of {limit_bytes}"
                raise spoiled("too_large", why)
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
