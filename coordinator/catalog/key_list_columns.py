"""Check the column names of a key list, and pack the columns that identify samples."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from superdl.coordinator.catalog.members import Members, distinct, narrowed
from superdl.coordinator.catalog.strings import PackedStrings, PackedStringsBuilder
from superdl.super_wire.errors import ConfigError, SourceError
from superdl.super_wire.ids import MAIN_FIELD, MAX_FIELDS, checked_field
from superdl.super_wire.request import MEMBER_ENCODINGS, ROW_ENCODING, Limits, is_row

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    Parts = dict[str, frozenset[str]]

# Suffix of the names of lists whose length varies by row.
VARIES = "[]"

LABELS = ("label", f"label{VARIES}")

# Advice about values of different types in a column.
MIXED = (
    "use only numbers, only strings, or only lists of the same shape "
    '(CSV cannot distinguish the string "7" from the number 7; JSONL and Parquet can)'
)

_NUMERIC = ("offset", "length")
_MEMBER = ("member", *_NUMERIC)
_OF_PARTS = frozenset({"key", "version", *_MEMBER, "encoding"})
_MAX_KEY_BYTES = 4096  # Linux's longest path; S3 keys have at most 1024
_MAX_NAME_BYTES = 4096
_MAX_VERSION = 256  # characters
_MAX_LENGTH = Limits().object_bytes
_MAX_OFFSET = 2**63 - _MAX_LENGTH
_MAX_ROW = 2**31 - 1  # of a row group, and of row groups in a file
_MAX_ENCODINGS = 256
_OUTSIDE = r"(\A|/)\.{0,2}(/|\z)"  # a path segment that is empty, . or ..
_SHOWN = 200  # characters of a name in a message


class Rows(NamedTuple):
    """A batch of rows."""

    # Line numbers or, for Parquet, row numbers from 1, as int64.
    numbers: NDArray[np.int64]
    # Arrow arrays with a value for each row. Columns of fields have names such as mask.key.
    columns: Mapping[str, Any]
    # The label column's name, which ends in VARIES for lists of any length.
    labelled: str
    # Columns by part. The part of the main objects has an empty name. Other parts are named after a field.
    parts: Parts


class BadRowError(ValueError):
    """A row cannot be used. ``number`` is 0 if the whole file is unusable, and ``reason`` explains why."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(number, reason)
        self.number, self.reason = number, reason


def check_rows(bad: Any, numbers: NDArray[np.int64], reason: str | Callable[[int], str]) -> None:
    """Raise :class:`BadRowError` for the first bad row, if any. ``reason`` may be a function of the index."""
    for at in np.flatnonzero(np.asarray(bad))[:1].tolist():
        raise BadRowError(int(numbers[at]), reason if isinstance(reason, str) else reason(at))


def coded(texts: Any, numbers: NDArray[np.int64], code_of: Callable[[str], int]) -> NDArray[np.int64]:
    """Return the code of each string. ``code_of`` must raise ``ValueError`` for invalid strings."""
    encoded, codes = texts.dictionary_encode(), []
    indices = encoded.indices.to_numpy()
    for index, text in enumerate(encoded.dictionary.to_pylist()):  # in the order of first rows
        try:
            codes.append(code_of(text))
        except ValueError as error:
            check_rows(indices == index, numbers, str(error))
    of_rows: NDArray[np.int64] = np.array(codes, dtype=np.int64)[indices]
    return of_rows


def is_text(kind: Any) -> bool:
    """Return whether an Arrow type is a string type."""
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def kind_of(name: str) -> Any:
    """Return the Arrow type of a column other than the label."""
    import pyarrow as pa

    return pa.int64() if name.endswith(_NUMERIC) else pa.large_string()


def other_fields(expected: Iterable[str]) -> str:
    """Return an error message for a label that does not have the ``expected`` fields."""
    names = ", ".join(filter(None, expected))[:200] or "none"
    return f"all labels must have the same fields, but those before it have others ({names})"


def check_columns(names: Sequence[Any], number: int, *needed: str) -> None:
    """Check that each needed column exists exactly once. Other columns are ignored."""
    if any(names.count(name) != 1 for name in needed):
        raise BadRowError(number, f"the header must contain key and label once each; got {names}"[:400])


def labelled_by(names: Collection[Any], number: int) -> str:
    """Find the label column among ``names``, and return its name."""
    if set(LABELS) <= set(names):
        raise BadRowError(number, "the columns label and label[] both exist: remove one")
    return LABELS[LABELS[1] in names]


def parts_of(names: Collection[str], number: int) -> Parts:
    """Group the columns by part: the main objects, and each field (such as ``mask`` in ``mask.key``)."""
    by_field: dict[str, list[str]] = {"": [name for name in names if name in _OF_PARTS]}
    for name in names:
        field, _, column = name.partition(".")
        if column in _OF_PARTS and field not in {"", "label"}:
            by_field.setdefault(field, []).append(column)
    parts = {}
    for field, columns in by_field.items():
        where = f"field {field[:80]}: " if field else ""
        if len(set(columns)) < len(columns):
            raise BadRowError(number, f"{where}a column appears twice in {', '.join(columns)}")
        present = [name for name in _MEMBER if name in columns]
        # An offset or a length alone is the user's own column.
        if len(present) == len(_MEMBER) - 1 or present == ["member"]:
            reason = (
                f"the columns member, offset and length belong together; got only {' and '.join(present)}"
            )
            raise BadRowError(number, f"{where}{reason}")
        of_members = len(present) == len(_MEMBER)
        if of_members or "key" in columns:
            try:
                name = field and checked_field(field)
            except ConfigError as error:
                raise BadRowError(number, f"{where}{error}") from error
            parts[name] = frozenset(columns).difference(() if of_members else (*_MEMBER, "encoding"))
    if MAIN_FIELD in parts or len(parts) > MAX_FIELDS:
        raise BadRowError(
            number,
            f"at most {MAX_FIELDS - 1} fields are allowed, none of them named {MAIN_FIELD}, which has the "
            f"columns without a prefix; got {', '.join(filter(None, parts))}",
        )
    return parts


def names_of(parts: Parts) -> list[str]:
    """Return the full column names of all parts."""
    return [f"{part}." * bool(part) + name for part, names in parts.items() for name in sorted(names)]


class Part(NamedTuple):
    """The columns of one part: the samples' main objects, or a field."""

    # Relative to the source. With members, keys and versions belong to distinct objects, in byte order.
    # Without, a field's keys may repeat.
    keys: PackedStrings
    # None if the list has no such column.
    versions: PackedStrings | None
    # In row order, with their line numbers. None if the rows are whole objects.
    members: Members | None
    lines: NDArray[np.int64]


class PartColumns:
    """Collects the columns of a part batch by batch, using a few bytes per row."""

    def __init__(self, name: str, *, of_files: bool) -> None:
        self._name, self._of_files = name, of_files
        self.keys, self.versions = PackedStringsBuilder(), PackedStringsBuilder()
        self._names = PackedStringsBuilder()
        self._columns = defaultdict[str, list[Any]](list)
        self._codes = {encoding: code for code, encoding in enumerate(MEMBER_ENCODINGS)}

    def extend(self, rows: Rows) -> None:
        """Add rows. Raises :class:`BadRowError` if a row is invalid."""
        try:
            self._extend(rows, f"{self._name}." if self._name else "")
        except BadRowError as error:
            where = f"field {self._name}: " if self._name else ""
            raise BadRowError(error.number, where + error.reason) from error

    def _extend(self, rows: Rows, prefix: str) -> None:
        names = rows.parts[self._name]
        # A field without a key is a member of the main object.
        keyed = prefix if "key" in names else ""
        keys = _keys(rows, f"{keyed}key", of_files=self._of_files)
        versions = None
        if "version" in names:
            versions = _versions(rows, f"{prefix}version")
        elif not keyed and "version" in rows.parts[""]:
            versions = _versions(rows, "version")
        if "member" in names:
            # Members of an object are mostly adjacent, so add a key once for each run of members.
            is_new = np.ones(len(keys), dtype=np.bool_)
            is_new[1:] = ~keys.equals_next()
            if versions is not None:
                is_new[1:] |= ~versions.equals_next()
            self._add_members(rows, prefix, keys)
            self._columns["objects"].append(len(self.keys) - 1 + np.cumsum(is_new))
            keys = keys.reorder(np.flatnonzero(is_new))
            versions = None if versions is None else versions.reorder(np.flatnonzero(is_new))
        self.keys.extend(keys)
        if versions is not None:
            self.versions.extend(versions)

    def _add_members(self, rows: Rows, prefix: str, keys: PackedStrings) -> None:
        import pyarrow.compute as pc

        numbers, names = rows.numbers, rows.columns[f"{prefix}member"].fill_null("")
        sizes = pc.binary_length(names).to_numpy()
        check_rows(
            (sizes == 0) | (sizes > _MAX_NAME_BYTES) | np.asarray(pc.match_substring(names, "\0")),
            numbers,
            lambda at: (
                f"the name of a member of {_shown(keys[at])} must be 1 to {_MAX_NAME_BYTES} bytes long, "
                f"without NUL; got {names[at].as_py()[:60]!r}"
            ),
        )
        encodings, codes = rows.columns.get(f"{prefix}encoding"), np.zeros(len(numbers), dtype=np.int64)
        if encodings is not None:
            codes = coded(encodings.fill_null(""), numbers, self._code_of)
        are_rows = codes >= len(MEMBER_ENCODINGS)
        limits = {
            "offset": (np.zeros_like(codes), np.where(are_rows, _MAX_ROW, _MAX_OFFSET)),
            "length": (np.where(are_rows, 0, 1), np.where(are_rows, _MAX_ROW, _MAX_LENGTH)),
        }
        for name, (least, most) in limits.items():
            values = rows.columns[f"{prefix}{name}"].fill_null(-1).to_numpy()

            def reason(at: int, name: str = name, values: Any = values, limits: Any = (least, most)) -> str:
                what = f"the member {names[at].as_py()[:_SHOWN]!r} of {_shown(keys[at])}"
                kind = ("the row group" if name == "offset" else "the row") if are_rows[at] else f"the {name}"
                return f"{kind} of {what} must be from {limits[0][at]} to {limits[1][at]}, not {values[at]}"

            check_rows((values < least) | (values > most), numbers, reason)
            self._columns[name].append(narrowed(values))
        self._names.extend(PackedStrings.of(names))
        self._columns["encodings"].append(codes.astype(np.uint8))
        self._columns["lines"].append(numbers)

    def _code_of(self, encoding: str) -> int:
        """Return the code of an encoding. Each new Parquet column gets a code of its own."""
        if encoding in self._codes:
            return self._codes[encoding]
        if not is_row(encoding) or len(encoding.encode()) > _MAX_NAME_BYTES:
            raise ValueError(
                f"unknown member encoding {encoding[:60]!r}: leave it empty for plain bytes, use "
                f"'deflate' for bytes in a compressed zip, '{ROW_ENCODING}COLUMN' for rows of Parquet files"
            )
        if len(self._codes) == _MAX_ENCODINGS:
            raise ValueError(f"the members of a key list may have at most {_MAX_ENCODINGS} encodings")
        return self._codes.setdefault(encoding, len(self._codes))

    def part(self, url: str, *, shared: bool = False) -> Part:
        """Return the objects or members of all rows. Error messages contain ``url``.

        Raises ``SourceError`` if an object has two versions. Overlapping members and members with the
        same name are errors too, unless ``shared`` allows samples to share members.
        """
        keys, versions = self.keys.build(), self.versions.build() if len(self.versions) else None
        if not len(self._names):
            return Part(keys, versions, None, np.empty(0, dtype=np.int64))
        first, which = distinct(keys)
        if versions is not None:
            # An object's members may be scattered, so compare each version with the first.
            version_of = distinct(versions)[1]
            if len(other := np.flatnonzero(version_of != version_of[first][which])):
                at = int(other[0])
                raise SourceError(
                    f"key_list {url}: the members of {_shown(keys[at])} have two versions, "
                    f"{versions[int(first[which[at]])].decode()!r} and {versions[at].decode()!r}: list the "
                    "object's members again"
                )
            versions = versions.reorder(first)
        keys = keys.reorder(first)
        columns = {name: np.concatenate(pieces) for name, pieces in self._columns.items()}
        # Sorted, because fingerprints must not depend on the order of rows.
        row_encodings = sorted(list(self._codes)[len(MEMBER_ENCODINGS) :])
        codes = {encoding: code for code, encoding in enumerate((*MEMBER_ENCODINGS, *row_encodings))}
        encodings = np.array([codes[name] for name in self._codes], dtype=np.uint8)[columns["encodings"]]
        spans, objects = (columns["offset"], columns["length"]), which[columns["objects"]]
        members = Members(objects, self._names.build(), *spans, encodings, tuple(row_encodings))
        if not shared:
            self._check(url, keys, members, columns["lines"])
        return Part(keys, versions, members, columns["lines"])

    @staticmethod
    def _check(url: str, keys: PackedStrings, members: Members, lines: NDArray[np.int64]) -> None:
        # Members sorted by offset overlap only if two neighbours do.
        by_offset, name_of = members.sort_order(), distinct(members.names)[1]
        by_name = np.lexsort((name_of, members.objects))
        overlap = members.ends[by_offset][:-1] > members.offsets[by_offset][1:]
        again = name_of[by_name][:-1] == name_of[by_name][1:]
        for order, bad, what in (
            (by_offset, overlap, "overlap"),
            (by_name, again, "have the same name, from which their ids are derived"),
        ):
            beside = np.diff(members.objects[order].astype(np.int64)) == 0
            for at in np.flatnonzero(beside & bad)[:1].tolist():
                pair = sorted(order[at : at + 2].tolist())
                names = " and ".join(
                    f"{members.names[row].decode()[:_SHOWN]!r} (line {lines[row]})" for row in pair
                )
                spans = " and ".join(f"{members.offsets[row]} to {members.ends[row]}" for row in pair)
                key = _shown(keys[int(members.objects[pair[0]])])
                raise SourceError(f"key_list {url}: the members {names} of {key} (bytes {spans}) {what}")


def _keys(rows: Rows, name: str, *, of_files: bool) -> PackedStrings:
    import pyarrow.compute as pc

    keys = rows.columns[name].fill_null("")
    sizes = pc.binary_length(keys).to_numpy()

    def refuse(bad: Any, rule: str) -> None:
        check_rows(bad, rows.numbers, lambda at: f"the key {keys[at].as_py()[:_SHOWN]!r} {rule}")

    refuse(sizes == 0, "is empty")
    refuse(pc.match_substring(keys, "\0"), "contains a NUL character")
    if of_files:
        rule = "is not a path below the source: remove any leading / and all //, . and .. segments"
        refuse(pc.match_substring_regex(keys, _OUTSIDE), rule)
    refuse(sizes > _MAX_KEY_BYTES, f"is too long: keys may be at most {_MAX_KEY_BYTES} bytes long")
    return PackedStrings.of(keys)


def _versions(rows: Rows, name: str) -> PackedStrings:
    import pyarrow.compute as pc

    versions = rows.columns[name].fill_null("")
    # S3 quotes ETags, and lists may contain them either way.
    bare = pc.utf8_trim(versions, '"')
    length, size = pc.utf8_length(versions).to_numpy(), pc.binary_length(bare).to_numpy()
    check_rows(
        (length > _MAX_VERSION) | (size == 0),
        rows.numbers,
        lambda at: (
            f"a version must be an object's ETag, or a file's size-mtime_ns, not "
            f"{versions[at].as_py()[:60]!r}. Without the column, versions are looked up"
        ),
    )
    return PackedStrings.of(bare)


def _shown(key: bytes) -> str:
    return repr(key.decode()[:_SHOWN])
