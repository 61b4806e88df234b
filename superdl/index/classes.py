"""Which samples an index is of, and what their classes are: splits are not mixed, and a folder around all of
them is no class.
"""

from __future__ import annotations

import itertools
import pickle
import posixpath
import re
import tempfile
from collections import Counter
from typing import TYPE_CHECKING, Any

from superdl.index.shard import ShardError
from superdl.super_wire.errors import ConfigError, SourceError
from superdl.super_wire.redaction import shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["EVERY_SPLIT", "Labelling", "folders_of", "keys_of_split", "lines_of_classes"]

EVERY_SPLIT = "all"
"""The name that takes the splits of a source together."""

# As the Hub knows them.
_SPLITS = frozenset({"train", "training", "val", "valid", "validation", "dev"})
_SPLITS |= {"test", "testing", "eval", "evaluation"}
_OF_HUB = re.compile(r"(?:.*-)?([^-]+)-[0-9]{5}-of-[0-9]{5}\.parquet")
_LINES = 20
_MOST_CLASSES = 100_000  # of captions there are as many as samples
_NAME_LENGTH = 60


def folders_of(name: str) -> list[str]:
    """The folders in which a file lies, from the outermost on."""
    return name.removeprefix("./").split("/")[:-1]


def keys_of_split(keys: Sequence[str], split: str | None, url: str, *, of_shards: bool) -> list[str]:
    """The keys of one split; all of them where they name at most one.

    Args:
        keys: relative to the source.
        split: its name, ``all``, or ``None`` where the user names none.
        url: the source's, for errors.
        of_shards: names of files tell their split too, not only those of folders.

    Raises:
        ConfigError: they are of several splits, and none was named; or none is of this one.
    """
    splits = {key: _split_of(key, of_shards=of_shards) for key in keys}
    names = Counter(name for name in splits.values() if name)
    if split == EVERY_SPLIT or not (names or split):
        return list(keys)
    listed = ", ".join(f"{shown(name)} ({count:,} files)" for name, count in sorted(names.items())[:_LINES])
    if split is None:
        if len(names) > 1:
            raise ConfigError(
                f"{url} holds the splits {listed}: name one by --split NAME, or --split {EVERY_SPLIT} "
                "takes them together"
            )
        return list(keys)
    if split not in names:
        raise ConfigError(f"{url}: no file is of the split {split!r}; its splits are {listed or 'not named'}")
    return [key for key, name in splits.items() if name == split]


def _split_of(key: str, *, of_shards: bool) -> str:
    """The split that a path names; empty if it names none."""
    words = folders_of(key)
    base = posixpath.basename(key)
    if of_shards:
        words += re.split(r"[-_.]", base)
    named = next((word for word in words if word.lower() in _SPLITS), "")
    of_hub = _OF_HUB.fullmatch(base) if of_shards and not named else None
    return of_hub[1] if of_hub else named


class Labelling:
    """Gives each sample its label once all are known, and counts the classes.

    Rows without a label are of the first folder that tells samples apart. Until all are read they lie in a
    temporary file, so that memory is bounded.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._rows = tempfile.TemporaryFile()  # noqa: SIM115  # closed by close()
        self._common: list[str] | None = None
        self._deepest = 0
        self.counts: Counter[Any] = Counter()

    def take(self, rows: Sequence[Any]) -> None:
        """Keep some more rows."""
        for row in rows:
            if row.label is None:
                folders = folders_of(row.member)
                self._deepest = max(self._deepest, len(folders))
                self._common = folders if self._common is None else _shared(self._common, folders)
        pickle.dump(rows, self._rows)

    def labelled(self) -> Iterator[list[Any]]:
        """All rows with their labels, in the order in which they were taken.

        Raises:
            SourceError: folders tell no classes apart or name splits, or labels are of two kinds.
        """
        self._rows.seek(0)
        first: Any = None
        while True:
            try:
                rows = pickle.load(self._rows)  # noqa: S301  # this process wrote it
            except EOFError:
                break
            labelled = [self._counted(row) for row in rows]
            for row in labelled:
                first = first or row
                if isinstance(row.label, str) is not isinstance(first.label, str):
                    raise ShardError(
                        f"{_where(row)}: its label is {row.label!r:.60}, that of {_where(first)} is "
                        f"{first.label!r:.60}: labels are all numbers or all texts (--label-field, --labels)"
                    )
            yield labelled
        self._check_folders()

    def close(self) -> None:
        """Delete the temporary file."""
        self._rows.close()

    def _counted(self, row: Any) -> Any:
        if row.label is None:
            folders, depth = folders_of(row.member), len(self._common or ())
            if depth == self._deepest:  # one class, which the table of classes shows
                depth -= 1
            if len(folders) <= depth:
                raise SourceError(self._one_folder(row))
            row = row._replace(label=folders[depth])
        if isinstance(row.label, int | str) and (
            row.label in self.counts or len(self.counts) < _MOST_CLASSES
        ):
            self.counts[row.label] += 1
        return row

    def _one_folder(self, row: Any) -> str:
        common = "/".join(self._common or ())
        return (
            f"{_where(row)}: all samples lie in {common!r}, and this one in no further folder that names its "
            "class: --labels folder takes the folder in which each lies, --label-field NAME a file beside "
            "it, --labels none the number 0"
        )

    def _check_folders(self) -> None:
        names = {name for name in self.counts if isinstance(name, str)}
        if self._common is not None and len(names) > 1 and {name.lower() for name in names} <= _SPLITS:
            raise SourceError(
                f"{self._url}: the first folders of its samples are {', '.join(sorted(names))}, which are "
                "splits and no classes: name one by --split NAME"
            )


def _shared(folders: list[str], others: list[str]) -> list[str]:
    """The folders with which both paths begin."""
    pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(folders, others, strict=False))
    return [folder for folder, _ in pairs]


def _where(row: Any) -> str:
    member = getattr(row, "member", None)
    return row.key if member is None else f"{row.key}: member {member!r}"


def lines_of_classes(counts: Counter[Any]) -> list[str]:
    """The table of classes for people: the first of them, and how many there are."""
    if not counts:
        return []
    named = sorted(counts.items(), key=lambda item: (isinstance(item[0], str), item[0]))
    most = f"{_MOST_CLASSES:,} or more" if len(counts) >= _MOST_CLASSES else f"{len(counts):,}"
    why = " (every sample has one label: --labels and --label-field choose others)"
    lines = [f"classes: {most}{why if len(counts) == 1 else ''}"]
    lines += [f"  {shown(str(name))[:_NAME_LENGTH]}  {count:,}" for name, count in named[:_LINES]]
    if len(named) > _LINES:
        lines.append(f"  and {len(named) - _LINES:,} more")
    return lines
