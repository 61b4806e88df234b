"""Bad samples found by readers, each logged once and counted."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

from superdl.super_dataset.memory.handover import file_path, open_file
from superdl.super_wire.display import counted, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from superdl.super_dataset.reading.delivery import LastGood
    from superdl.super_wire.batch_ref import BatchRef

_LOG = logging.getLogger("superdl.super_dataset")
_NAMED_MAX = 100
_LISTED_MAX = 100_000
_REASON_MAX = 1000

# Whether this thread's caller continues with the next batch after a BatchLeftOut.
LEAVES_OUT: ContextVar[bool] = ContextVar("LEAVES_OUT", default=False)


class BatchLeftOut(Exception):  # noqa: N818 # not an error: the loader skips the batch
    """All samples of the batch are bad, and the policy is to skip them.

    If every batch of an epoch is skipped, the loader raises the first one's cause.
    """


class BadSample(NamedTuple):
    """A sample that could not be produced, and how readers handled it.

    ``handled`` is ``skipped``, ``replaced``, ``batch left out`` or ``batch filled``. ``times`` is the
    number of times it occurred in this process and its workers.
    """

    # As in a BatchInfo, including the member of an archive.
    key: str
    reason: str
    handled: str
    times: int


class BadSamples:
    """A dataset's bad samples, kept in the process that created the list. Copies forward to that list."""

    def __init__(self, source: str) -> None:
        self.pid = os.getpid()
        self.last_good: LastGood | None = None  # read by this process
        self._source = source
        self._lock = threading.Lock()
        # Workers append to a file in memory, since a pipe would block them while the trainer is busy, and
        # they may die without notice. The trainer empties it under a lock, so it stays small.
        self._file = open_file()
        fcntl.fcntl(self._file, fcntl.F_SETFL, os.O_APPEND)
        self._listed: dict[str, BadSample] = {}
        self._times = self._unlisted = 0

    def __reduce__(self) -> Any:
        return _in_worker, (self.pid, self._file, _identity(self._file), self._source)

    def add(self, ref: BatchRef, bad: Mapping[int, str], handled: str) -> None:
        """Record a batch's bad samples, given as reasons by offset, and how they were handled."""
        entries = [(ref.name_of(at), reason[:_REASON_MAX], handled) for at, reason in sorted(bad.items())]
        if os.getpid() == self.pid:
            self._note(entries)
            return
        lines = "".join(f"{json.dumps(entry)}\n" for entry in entries)
        with _locked(self._file):
            os.write(self._file, lines.encode())

    def listed(self) -> tuple[BadSample, ...]:
        """Return the distinct bad samples so far, in the order of their first occurrence."""
        self.collect()
        with self._lock:
            return tuple(self._listed.values())

    def collect(self) -> None:
        """Read what workers have sent. This takes a microsecond if there is nothing to read."""
        if os.getpid() != self.pid or not os.fstat(self._file).st_size:
            return
        with self._lock, _locked(self._file):
            sent = os.pread(self._file, os.fstat(self._file).st_size, 0)
            os.ftruncate(self._file, 0)
        self._note(json.loads(line) for line in sent.splitlines())

    def close(self) -> None:
        """Log a summary and close the file. Called when the dataset is dropped or its process exits."""
        if os.getpid() == self.pid:
            self.collect()
            if self._listed:
                keys = [shown(key) for key in [*self._listed][:_NAMED_MAX]]
                more = len(self._listed) + self._unlisted - len(keys)
                _LOG.warning(
                    "%s of %s could not be produced and were skipped or replaced %s: %s%s",
                    counted(len(self._listed) + self._unlisted, "sample"),
                    shown(self._source),
                    counted(self._times, "time"),
                    ", ".join(keys),
                    f" and {more:,} more" if more else "",
                )
        os.close(self._file)

    def _note(self, entries: Iterable[tuple[str, str, str]]) -> None:
        with self._lock:
            for key, reason, handled in entries:
                self._times += 1
                known = self._listed.get(key)
                if known is None and len(self._listed) >= _LISTED_MAX:
                    self._unlisted += 1
                    continue
                self._listed[key] = BadSample(key, reason, handled, known.times + 1 if known else 1)
                if known is None:
                    self._name(self._listed[key], len(self._listed))

    def _name(self, sample: BadSample, number: int) -> None:
        if number <= _NAMED_MAX:
            text = "bad sample in %s (%s): %s (%s)"
            _LOG.warning(text, shown(self._source), sample.handled, shown(sample.key), shown(sample.reason))
        elif number.bit_count() == 1:  # each time the number has doubled
            text = "%d bad samples in %s so far; see bad_samples of the dataset, loader or sampler"
            _LOG.warning(text, number, shown(self._source))


def _identity(file: int) -> tuple[int, int]:
    status = os.fstat(file)
    return status.st_dev, status.st_ino


def _in_worker(pid: int, file: int, identity: tuple[int, int], source: str) -> BadSamples:
    """Return a copy that forwards to the original, or a new list if that is gone or in this process."""
    copy = BadSamples(source)
    if pid == os.getpid():
        return copy
    try:
        reached = os.open(file_path(pid, file), os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
    except OSError:
        return copy
    # On another host, or later, the numbers may belong to another process or file.
    if _identity(reached) == identity:
        os.dup2(reached, copy._file, inheritable=False)  # noqa: SLF001 # its own class
        copy.pid = pid
    os.close(reached)
    return copy


@contextlib.contextmanager
def _locked(file: int) -> Iterator[None]:
    # The kernel releases the lock of a killed process.
    fcntl.lockf(file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.lockf(file, fcntl.LOCK_UN)
