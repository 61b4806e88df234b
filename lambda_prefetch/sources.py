"""What the pipeline asks of a source of objects, and how one sample fails: what each source refuses alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from superdl.super_wire.request import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ObjectSource", "Pending", "SampleFailedError", "check_size", "check_version", "spoiled"]


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

    ``reason`` is ``empty``, ``not_an_image``, ``undecodable`` or ``too_large``.
    """
    return SampleFailedError(Outcome.TOMBSTONE, why, reason=reason)


class Pending(Protocol):
    """An object that was asked for; :mod:`select` can wait for its answer to begin."""

    def fileno(self) -> int:
        """The descriptor to wait for."""

    def close(self) -> None:
        """Give up."""


class ObjectSource(Protocol):
    """Reads objects; called by several threads at once."""

    @property
    def threads(self) -> int:
        """How many threads read it best."""

    @property
    def in_flight(self) -> int:
        """How many objects each of them should have begun at a time."""

    def begin(self, key: str, version: str) -> Pending | None:
        """Ask for an object whose bytes :meth:`read` is to give later.

        ``None`` if it cannot be asked for ahead; :meth:`read` gives it, or says why not.
        """

    def read(
        self,
        key: str,
        version: str,
        *,
        limit_bytes: int,
        reserve: Callable[[int], None],
        begun: Pending | None = None,
    ) -> bytes | bytearray:
        """The bytes of one object in exactly this version.

        Args:
            key: the object's key.
            version: what the catalog listed.
            limit_bytes: larger objects are refused before their bytes are read.
            reserve: called once, with the object's size in bytes, before its bytes are read; it may wait.
            begun: what :meth:`begin` gave for this key and version; it is used up.

        Raises:
            SampleFailedError: the object is missing, changed, refused or too large, or the source failed.
        """


def check_version(found: str, listed: str) -> None:
    """Refuse an object of another version than the catalog listed, since its id would lie."""
    if found != listed:
        raise SampleFailedError(Outcome.CHANGED, f"its version is {found}; the catalog lists {listed}")


def check_size(size_bytes: int, limit_bytes: int) -> None:
    """Refuse an object that is larger than the request allows."""
    if size_bytes > limit_bytes:
        raise spoiled("too_large", f"its {size_bytes} bytes are over the limit of {limit_bytes}")
