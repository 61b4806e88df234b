"""The errors that SUPER raises, as one tree below :class:`SuperError`, and their names on the wire.

Every error can be constructed from its message alone: this is how torch rebuilds a
DataLoader worker's error in the main process.
"""

from __future__ import annotations

from superdl.super_wire.redaction import shown_lines


class SuperError(Exception):
    """Base of all errors that SUPER raises; their text is always printable."""

    def __str__(self) -> str:
        return shown_lines(super().__str__())


class ConfigError(SuperError, ValueError):
    """An argument or a setting is wrong; the message names it and the remedy."""


class PlanError(ConfigError):
    """Sizes, ranks or positions that no plan can have."""


class RecipeError(ConfigError):
    """A recipe step is unknown, of the wrong type or out of its range."""


class SourceError(SuperError):
    """A source cannot be listed or read."""


class SourceBusyError(SourceError):
    """The source throttles, or does not answer now. Try later."""


class SourceNotFoundError(SourceError):
    """The source's directory or bucket does not exist."""


class SourceEmptyError(SourceError):
    """The source exists but holds no sample."""


class SourceForbiddenError(SourceError):
    """The source exists but may not be read."""


class RecordError(SuperError):
    """Bytes found under a cache key are not a record that this version reads."""


class RecordVersionError(RecordError):
    """The record was written in another format version."""


class RecordIdError(RecordError):
    """The record is intact, but belongs to another sample than the requested one."""


class CoordinatorError(SuperError):
    """The coordinator answered with a failure."""


class CoordinatorUnreachableError(CoordinatorError):
    """No coordinator answered at the address within the bounded wait."""


class CoordinatorTrustError(CoordinatorError):
    """Client and coordinator lack trust: a certificate or token is missing or wrong."""


class ProtocolMismatchError(CoordinatorError):
    """Client and coordinator speak different protocol versions."""


class UnknownJobError(CoordinatorError):
    """The coordinator does not know the job (it was restarted, or the job's lease expired)."""


class CacheError(SuperError):
    """The cache answered with a failure."""


class CacheUnreachableError(CacheError):
    """No cache answered at the address within the bounded wait."""


class BatchError(SuperError):
    """One batch could not be delivered."""


class BadSampleError(BatchError):
    """A sample of the batch cannot be produced; the message names its key and the reason."""


class SpendingCapError(BatchError):
    """Samples are not in the cache, and the coordinator's spending cap is reached."""


class ReadTimeoutError(BatchError):
    """Samples of the batch were still missing when ``read_timeout`` ran out."""


class StoreError(SuperError):
    """A store cannot be opened, read or written."""


class StoreGoneError(StoreError):
    """The store, or a pack in it, does not exist."""


class StoreFullError(StoreError):
    """There is no room to write: a full disk, or a quota."""


class StoreRefusedError(StoreError):
    """The store may not be read or written: a permission, or it is read-only."""


class StoreBusyError(StoreError):
    """The store does not answer now: throttled, timed out or unreachable. Try later."""


class StoreFormatError(StoreError):
    """It is not a store, pack or segment of this version, or it is broken."""


class EmbeddedError(SuperError):
    """The embedded coordinator, Redis or function pool could not be started."""


class UsageError(SuperError, TypeError):
    """An object was used in an unintended way; the message shows the intended one."""


def _tree(root: type[SuperError]) -> dict[str, type[SuperError]]:
    classes = {root.__name__: root}
    for child in root.__subclasses__():
        classes |= _tree(child)
    return classes


def error_from_name(name: str, message: str) -> SuperError:
    """Rebuild a coordinator's error; an unknown name gives a :class:`CoordinatorError`."""
    return _tree(SuperError).get(name, CoordinatorError)(message)
