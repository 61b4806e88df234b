"""Read reports, which are stream entries in the cache."""

from __future__ import annotations

import itertools
import operator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from superdl.super_wire.keys import report_stream

if TYPE_CHECKING:
    from collections.abc import Mapping

# Approximate limit for a job's stream, passed with every XADD. Entries may be lost or arrive twice:
# a reader reports remaining misses again.
REPORT_STREAM_MAXLEN = 4096
_MAX_NUMBER = 2**63
# One field for all numbers, because each field costs the coordinator time.
_NUMBERS_FIELD = b"r"
# More than the largest batch needs.
_FIELD_BYTES_MAX = {_NUMBERS_FIELD: 256, b"m": 2**22, b"c": 2**22}


@dataclass(frozen=True, slots=True)
class ReadReport:
    """A reader's progress with a batch. Times are in microseconds."""

    rank: int
    epoch: int
    position: int
    samples: int
    hits: int  # samples found in packs or with the first GET
    wait_us: int  # between attempts
    read_us: int  # receiving records
    check_us: int  # checking records
    size_bytes: int  # from the cache
    attempt: int
    done: int  # 1 if the batch was delivered or abandoned, otherwise 0
    straight: int = 0  # hits in packs
    # Offsets in the planned batch. Ids are not sent, because the coordinator can recompute the batch.
    missed: tuple[int, ...] = ()
    corrupt: tuple[int, ...] = ()  # misses whose cached record failed its check

    def to_fields(self) -> dict[bytes, bytes]:
        """Return the report as the fields of a stream entry."""
        entry = {_NUMBERS_FIELD: " ".join(map(str, _numbers_of(self))).encode()}
        for short, offsets in ((b"m", self.missed), (b"c", self.corrupt)):
            if offsets:
                entry[short] = np.asarray(offsets, dtype="<u4").tobytes()
        return entry

    def command(self, job: str) -> tuple[bytes, ...]:
        """Return the XADD command that appends the report to the job's stream."""
        words = itertools.chain.from_iterable(self.to_fields().items())
        return (b"XADD", report_stream(job), b"MAXLEN", b"~", b"%d" % REPORT_STREAM_MAXLEN, b"*", *words)

    @classmethod
    def from_fields(cls, entry: Mapping[bytes, bytes]) -> ReadReport:
        """Parse the fields of a stream entry. Raises ``ValueError`` if they are invalid."""
        if _NUMBERS_FIELD not in entry:
            raise ValueError(f"a read report has no field {_NUMBERS_FIELD!r}")
        oversized = [name for name, limit in _FIELD_BYTES_MAX.items() if len(entry.get(name, b"")) > limit]
        if oversized:  # before parsing
            raise ValueError(
                f"the field {oversized[0]!r} of a read report is too long: {len(entry[oversized[0]])} bytes"
            )
        numbers = [int(number) for number in entry[_NUMBERS_FIELD].split(b" ")]
        if len(numbers) != len(_NUMBERS):
            raise ValueError(f"a read report must have {len(_NUMBERS)} numbers, not {len(numbers)}")
        if min(numbers) < 0 or max(numbers) >= _MAX_NUMBER:
            raise ValueError(f"numbers in a read report must be from 0 to 2**63 - 1, not {numbers}")
        missed, corrupt = (
            tuple(np.frombuffer(entry.get(short, b""), dtype="<u4").tolist()) for short in (b"m", b"c")
        )
        return cls(**dict(zip(_NUMBERS, numbers, strict=True)), missed=missed, corrupt=corrupt)


_NUMBERS = tuple(entry.name for entry in fields(ReadReport) if entry.type == "int")
_numbers_of = operator.attrgetter(*_NUMBERS)
