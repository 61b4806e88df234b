"""The rows of a key list for the members of one shard: checked, in the order in which they lie."""

from __future__ import annotations

import posixpath
from collections import Counter
from typing import TYPE_CHECKING, Any

from superdl.index.choices import EVERY_SPLIT, LABELS, folders_of, star_of
from superdl.super_wire.request import Limits, is_row

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from superdl.index.choices import Choices
    from superdl.index.shard import Label, Member, Shard

    Row = dict[str, Any]  # by the names of columns, which are the same in all
    Rows = list[Row]

__all__ = ["rows_of"]

_NAME_BYTES = 4096
_MEMBER_BYTES = Limits().object_bytes


def rows_of(shard: Shard, members: Iterable[Member], choices: Choices) -> tuple[Rows, int, int]:
    """Rows of the members that are samples; how many are empty, and how many samples lack a field.

    Raises:
        ShardError: members overlap, are too large, or have no label or no name of their own.
    """
    members = sorted(members, key=lambda member: (member.offset, member.length))
    if choices.split not in {None, EVERY_SPLIT}:
        members = [member for member in members if choices.split in folders_of(member.name)]
    _check(shard, members)
    there = [member for member in members if member.length or is_row(member.encoding)]
    samples = _with_fields(there, choices)
    rows = []
    for member, parts in samples:
        if len(parts) == len(choices.fields[1:]):
            label = _label(shard, member, choices)
            row = {"key": shard.key, **_place(shard, member), "label": label, "version": shard.version}
            for name, part in parts.items():
                row |= {f"{name}.{column}": value for column, value in _place(shard, part).items()}
            rows.append(row)
    return rows, len(members) - len(there), len(samples) - len(rows)


def _check(shard: Shard, members: Sequence[Member]) -> None:
    """Refuse members, sorted by offset, that overlap, lie beyond the end, are too large, or share a name."""
    end, before = 0, ""
    for member in members:
        if is_row(member.encoding):
            continue
        shard.check(member.offset, member.length, member.name)
        if member.length > _MEMBER_BYTES:
            raise shard.error(
                f"it has {member.length:,} bytes, a sample has at most {_MEMBER_BYTES:,}", member.name
            )
        if member.offset < end:
            raise shard.error(f"it overlaps the member {before!r}", member.name)
        end, before = member.offset + member.length, member.name
    counts = Counter(member.name for member in members)
    if len(counts) < len(members):
        raise shard.error("its name comes more than once: which is meant?", counts.most_common(1)[0][0])


def _with_fields(members: Sequence[Member], choices: Choices) -> list[tuple[Member, dict[str, Member]]]:
    """The members of a shard that are images, each with those of its other fields that are there."""
    if not choices.fields:
        return [(member, {}) for member in members]
    by_star = {
        name: {star: member for member in members if (star := star_of(pattern, member.name)) is not None}
        for name, pattern in choices.fields
    }
    images, *others = by_star
    return [
        (member, {name: by_star[name][star] for name in others if star in by_star[name]})
        for star, member in by_star[images].items()
    ]


def _place(shard: Shard, member: Member) -> dict[str, Any]:
    """Columns of a key list that say where a member lies."""
    try:
        encoded = member.name.encode()
    except UnicodeEncodeError as error:
        raise shard.error("its name is not UTF-8: rename it", member.name) from error
    if not encoded or b"\0" in encoded or len(encoded) > _NAME_BYTES:
        raise shard.error(f"its name is empty, holds a NUL or has more than {_NAME_BYTES} bytes", member.name)
    place = member.name, member.offset, member.length, member.encoding
    return dict(zip(("member", "offset", "length", "encoding"), place, strict=True))


def _label(shard: Shard, member: Member, choices: Choices) -> Label | None:
    """The label of a member, as the choices have it; ``None``: a folder's, once all samples are known."""
    folders = folders_of(member.name)
    if choices.labels == "none":
        return 0
    if choices.labels == "shard":
        return posixpath.basename(shard.key).partition(".")[0]
    label: Label | None = member.label
    if choices.labels == "folder":
        label = folders[-1] if folders else None
    elif label is None and folders and choices.label_field is None:
        return None
    if label is None or label == "":
        raise shard.error(
            f"it has no label: say where labels are by --label-field NAME or --labels ({', '.join(LABELS)})",
            member.name,
        )
    return label
