"""Samples of several files, an image and its mask: which files go together, by patterns of their names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from superdl.super_wire.errors import ConfigError
from superdl.super_wire.ids import MAIN_FIELD, MAX_FIELDS, checked_field

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["columns_of", "fields_in", "star_of", "with_fields"]


class _Named(Protocol):
    @property
    def name(self) -> str: ...


_Member = TypeVar("_Member", bound=_Named)

_PLACE = ("member", "offset", "length", "encoding")


def fields_in(text: str) -> tuple[tuple[str, str], ...]:
    """Fields as ``image=images/*.jpg,mask=masks/*.png``, ``image`` first; ``jpg`` is ``*.jpg``.

    The files of a sample have the same text where their patterns have ``*``.

    Raises:
        ConfigError: it is none of that.
    """
    pairs = [part.partition("=")[::2] for part in text.split(",")]
    fields = {checked_field(name): pattern if "*" in pattern else f"*.{pattern}" for name, pattern in pairs}
    if any(not pattern or pattern.count("*") > 1 for _, pattern in pairs) or MAIN_FIELD not in fields:
        raise ConfigError(
            "--fields are written image=jpg,mask=png or 'image=images/*.jpg,mask=masks/*.png': extensions, "
            f"or names with one *; not {text[:80]!r}"
        )
    if not 1 < len(fields) == len(pairs) <= MAX_FIELDS:
        raise ConfigError(
            f"--fields {text[:80]!r}: name {MAIN_FIELD} and up to {MAX_FIELDS - 1} others, each once"
        )
    return tuple(sorted(fields.items(), key=lambda field: (field[0] != MAIN_FIELD, field[0])))


def star_of(pattern: str, name: str) -> str | None:
    """What stands in a name where its pattern has ``*``; ``None`` where it is not like that."""
    before, _, behind = pattern.partition("*")
    name = name.removeprefix("./")
    end = len(name) - len(behind)
    fits = name.startswith(before) and name.endswith(behind) and end > len(before)
    return name[len(before) : end] if fits else None


def with_fields(
    members: Sequence[_Member], fields: Sequence[tuple[str, str]]
) -> list[tuple[_Member, dict[str, _Member]]]:
    """The members of a shard that are images, each with those of its other fields that are there; without
    ``fields`` all of them.
    """
    if not fields:
        return [(member, {}) for member in members]
    places: list[dict[str, _Member]] = []
    for _, pattern in fields:
        stars = [(star_of(pattern, member.name), member) for member in members]
        places.append({star: member for star, member in stars if star is not None})
    names = [name for name, _ in fields[1:]]
    return [
        (
            member,
            {name: theirs[star] for name, theirs in zip(names, places[1:], strict=True) if star in theirs},
        )
        for star, member in places[0].items()
    ]


def columns_of(places: Mapping[str, tuple[str, int, int, str]]) -> dict[str, str | int]:
    """Name, offset, length and encoding of fields that are members, as columns of a key list."""
    columns: dict[str, str | int] = {}
    for name, place in places.items():
        columns |= zip([f"{name}.{column}" for column in _PLACE], place, strict=True)
    return columns
