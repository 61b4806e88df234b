"""SUPER's errors, which all derive from :class:`SuperError`.

Each can be constructed from a message alone, as torch does when it re-raises a worker's error
in the main process.
"""

from __future__ import annotations

from superdl.super_wire.display import shown_lines


class SuperError(Exception):
    """Base class of SUPER's errors. Their text is always printable."""

    def __str__(self) -> str:
        return shown_lines(super().__str__())


class ConfigError(SuperError, ValueError):
    """An argument or setting is wrong. The message names it and suggests a remedy."""


class PlanError(ConfigError):
    """Sizes, ranks or positions do not form a valid plan."""


class RecipeError(ConfigError):
    """A recipe step is unknown, has the wrong type or is out of range."""


class SourceError(SuperError):
    """A source cannot be listed or read."""


class SourceBusyError(SourceError):
    """The source throttles requests or does not respond. Try again later."""


class SourceNotFoundError(SourceError):
    """The source does not exist."""


class SourceEmptyError(SourceError):
    """The source exists but contains no samples."""


class SourceForbiddenError(SourceError):
    """The source exists, but access to it is denied."""


class RecordError(SuperError):
    """The bytes are not a record that this version can read."""


class RecordVersionError(RecordError):
    """The record was written in a different format version."""


class RecordIdError(RecordError):
    """The record belongs to another sample."""


class CoordinatorError(SuperError):
    """The coordinator reported an error."""


class CoordinatorUnreachableError(CoordinatorError):
    """No coordinator responded in time."""


class CoordinatorTrustError(CoordinatorError):
    """A certificate or token is missing or wrong."""


class ProtocolMismatchError(CoordinatorError):
    """Client and coordinator use different protocol versions."""


class UnknownJobError(CoordinatorError):
    """There is no such job: the coordinator has restarted, or the job's lease has expired."""


class CacheError(SuperError):
    """The cache reported an error."""


class CacheUnreachableError(CacheError):
    """No cache responded in time."""


class BatchError(SuperError):
    """A batch could not be delivered."""


class BadSampleError(BatchError):
    """A sample cannot be produced. The message contains its key and the reason."""


class SpendingCapError(BatchError):
    """Samples are missing, and the coordinator has reached its spending cap."""


class ReadTimeoutError(BatchError):
    """Samples were still missing when ``read_timeout`` expired."""


class StoreError(SuperError):
    """A store cannot be opened, read or written."""


class StoreGoneError(StoreError):
    """The store, or a pack in it, does not exist."""


class StoreFullError(StoreError):
    """The disk is full or a quota is exhausted."""


class StoreRefusedError(StoreError):
    """Permission to read or write is missing, or the store is read-only."""


class StoreBusyError(StoreError):
    """The store throttles requests or does not respond. Try again later."""


class StoreFormatError(StoreError):
    """A store, pack or segment is corrupt, or has an incompatible version."""


class EmbeddedError(SuperError):
    """The embedded coordinator, cache or worker cannot be started."""


class UsageError(SuperError, TypeError):
    """An object is used in an unsupported way. The message shows the correct usage."""


def _tree(root: type[SuperError]) -> dict[str, type[SuperError]]:
    classes = {root.__name__: root}
    for child in root.__subclasses__():
        classes |= _tree(child)
    return classes


def error_from_name(name: str, message: str) -> SuperError:
    """Create an error of the class ``name``, or a :class:`CoordinatorError` if that is impossible."""
    try:
        return _tree(SuperError).get(name, CoordinatorError)(message)
    except TypeError:  # the class needs more than a message
        return CoordinatorError(message)
