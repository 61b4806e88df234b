"""The errors that SUPER raises, as one tree below :class:`SuperError`, and their names on the wire.

Every error can be constructed from its message alone, because this is how torch rebuilds the
error of a DataLoader worker in the main process.
"""

from __future__ import annotations

from superdl.super_wire.redaction import shown_lines


class SuperError(Exception):
    """Base class of all errors that SUPER raises. Their text is always printable."""

    def __str__(self) -> str:
        return shown_lines(super().__str__())


class ConfigError(SuperError, ValueError):
    """An argument or setting is wrong. The message names it and explains what to do."""


class PlanError(ConfigError):
    """These sizes, ranks or positions do not form a valid plan."""


class RecipeError(ConfigError):
    """A recipe step is unknown, has the wrong type or is out of range."""


class SourceError(SuperError):
    """A source cannot be listed or read."""


class SourceBusyError(SourceError):
    """The source throttles requests or does not answer. Try again later."""


class SourceNotFoundError(SourceError):
    """The source's directory or bucket does not exist."""


class SourceEmptyError(SourceError):
    """The source exists but contains no samples."""


class SourceForbiddenError(SourceError):
    """The source exists, but access to it is denied."""


class RecordError(SuperError):
    """The bytes under a cache key are not a record that this version can read."""


class RecordVersionError(RecordError):
    """The record was written in a different format version."""


class RecordIdError(RecordError):
    """The record is intact but belongs to a sample that was not requested."""


class CoordinatorError(SuperError):
    """The coordinator reported a failure."""


class CoordinatorUnreachableError(CoordinatorError):
    """No coordinator answered at the address in time."""


class CoordinatorTrustError(CoordinatorError):
    """Client and coordinator do not trust each other, because a certificate or token is missing or wrong."""


class ProtocolMismatchError(CoordinatorError):
    """Client and coordinator use different protocol versions."""


class UnknownJobError(CoordinatorError):
    """The coordinator does not know the job, because it was restarted or the job's lease expired."""


class CacheError(SuperError):
    """The cache reported a failure."""


class CacheUnreachableError(CacheError):
    """No cache answered at the address in time."""


class BatchError(SuperError):
    """A batch could not be delivered."""


class BadSampleError(BatchError):
    """A sample of the batch cannot be produced. The message contains its key and the reason."""


class SpendingCapError(BatchError):
    """Samples are not in the cache, and the coordinator has reached its spending cap."""


class ReadTimeoutError(BatchError):
    """Samples of the batch were still missing when ``read_timeout`` expired."""


class StoreError(SuperError):
    """A store cannot be opened, read or written."""


class StoreGoneError(StoreError):
    """The store, or a pack in it, does not exist."""


class StoreFullError(StoreError):
    """There is no space left to write: the disk is full or a quota is reached."""


class StoreRefusedError(StoreError):
    """The store cannot be read or written: permission is missing, or it is read-only."""


class StoreBusyError(StoreError):
    """The store is throttled, timed out or unreachable. Try again later."""


class StoreFormatError(StoreError):
    """The store, pack or segment is broken, or was written by an incompatible version."""


class EmbeddedError(SuperError):
    """The embedded coordinator, Redis or function pool could not be started."""


class UsageError(SuperError, TypeError):
    """An object was used in an unsupported way. The message shows the right way."""


def _tree(root: type[SuperError]) -> dict[str, type[SuperError]]:
    classes = {root.__name__: root}
    for child in root.__subclasses__():
        classes |= _tree(child)
    return classes


def error_from_name(name: str, message: str) -> SuperError:
    """Rebuild a coordinator's error from its name. An unknown name makes a :class:`CoordinatorError`."""
    return _tree(SuperError).get(name, CoordinatorError)(message)
