"""Tars and zips: members are files, named by paths, and labelled by a file beside them or by their folder.

In a tar a sample is what shares its name up to the first dot, as WebDataset writes it. Python's own
``tarfile`` and ``zipfile`` read the headers; that an archive is whole is seen here.
"""

from __future__ import annotations

import posixpath
import re
import struct
import tarfile
import zipfile
import zlib
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from superdl.index.index_files import end_of, indexed_members, stale
from superdl.index.label_files import LABEL_FILE_BYTES, json_label, text_label
from superdl.index.shard import Member, ShardFile, refuse_compressed
from superdl.super_wire.hidden_names import is_hidden

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from superdl.index.shard import Choices, Label, Shard, Shards

__all__ = ["tar_members", "zip_members"]

_BLOCK = tarfile.BLOCKSIZE
_PADDING_BYTES = 2**24  # zeros that may follow the end mark: tar -b fills up whole records
_HEADER_BYTES = 2**16  # of a long name, or a pax header, whose numbers Python takes minutes for
_DIGITS_MAX = 255  # in a row, in a pax header: names of files may be numbers, and are no longer
_NUMBERS = re.compile(rb"[0-9]{%d}" % (_DIGITS_MAX + 1))
_PAX = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
_EXTENDED = (*_PAX, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
_LABELS = ("cls", "cls.txt")
# What Python's parsers raise for bytes that are no archive.
_BROKEN_TAR = (tarfile.TarError, ValueError, OverflowError, RecursionError, IndexError, KeyError)
_BROKEN_ZIP = (zipfile.BadZipFile, NotImplementedError, ValueError, OverflowError, struct.error, EOFError)

_DIRECTORY_BYTES = 2**30  # of a zip; some hundred bytes for each member
_LOCAL = struct.Struct("<4s5H3I2H")
_LOCAL_MAGIC = b"PK\3\4"
_UTF8 = 0x800
_ENCRYPTED = 0x2041  # encrypted, strongly encrypted, or with a masked header
_ENCODINGS = {zipfile.ZIP_STORED: "", zipfile.ZIP_DEFLATED: "deflate"}


_TWICE = "its name comes more than once, so that samples share a key: pack each under a key of its own"


class _BoundedHeader(tarfile.TarInfo):
    """A header of a tar whose extended headers are looked at before Python's parser takes them."""

    def _proc_member(self, archive: Any) -> tarfile.TarInfo:
        """Read what belongs to this header, as subclasses of ``TarInfo`` may."""
        if self.type in _EXTENDED:
            size = self.size
            if not 0 <= size <= _HEADER_BYTES:
                raise tarfile.ReadError(
                    f"an extended header has {size:,} bytes; at most {_HEADER_BYTES:,} are read"
                )
            at = archive.fileobj.tell()
            if self.type in _PAX and _NUMBERS.search(archive.fileobj.read(size)):
                raise tarfile.ReadError(f"a pax header has more than {_DIGITS_MAX} digits in a row")
            archive.fileobj.seek(at)
        return super()._proc_member(archive)  # type: ignore[misc, no-any-return]  # not in typeshed


class _File(NamedTuple):
    """A member of a tar that may be a sample or its label; ``extension`` is all after the first dot."""

    name: str
    extension: str
    offset: int
    size: int
    content: bytes | None


def tar_members(
    shard: Shard, choices: Choices, shards: Shards | None = None, index: str = ""
) -> Iterator[Member]:
    """The images in a tar, with the labels that stand in files beside them.

    ``index`` is the key, among ``shards``, of an index file that may say where they lie.

    Raises:
        ShardError: it is cut off, broken, compressed or sparse, or its index is another tar's.
    """
    names: list[str] = []
    samples = _tar_samples(shard, choices, shards, index, names)
    yield from _all_or_none(shard, samples, choices, names)


def _all_or_none(
    shard: Shard, members: Iterator[Member], choices: Choices, names: Collection[str]
) -> Iterator[Member]:
    """See that a label stands beside each image, or beside none: then the folder is it.

    ``names`` are those of all files that have the extension of a label, once ``members`` are through.
    """
    first: dict[bool, str] = {}
    bare: dict[str, str] = {}
    for member in members:
        first.setdefault(member.label is None, member.name)
        if member.label is None:
            bare[posixpath.splitext(member.name)[0]] = member.name
        yield member
    for name in names if choices.reads_labels else ():
        key = posixpath.splitext(name)[0]
        if (image := bare.get(key)) and _stem(image, choices)[0] != key:
            raise shard.error(
                f"its key is {_stem(image, choices)[0]!r}, up to its {choices.key_at.replace('-', ' ')}, so "
                f"that {name} is not its label: --key-at last-dot cuts keys at their last dot",
                image,
            )
    if len(first) > 1:
        rule = f"keys end at their {choices.key_at.replace('-', ' ')} (--key-at)"
        raise shard.error(
            f"no label stands beside it, and one beside {first[False]} ({rule}): give it one, or --labels "
            "folder takes the folder's name for all",
            first[True],
        )


def _tar_samples(
    shard: Shard, choices: Choices, shards: Shards | None, index: str, names: list[str]
) -> Iterator[Member]:
    labels = _label_extensions(choices)
    alone = _Alone(shard)
    group: list[_File] = []
    stem = ""
    entries = _indexed_entries(shard, shards.open(index)) if shards and index else _tar_entries(shard)
    for info in entries:
        if is_hidden(info.name):
            continue
        shard.check(info.offset_data, info.size, info.name)
        now, extension = _stem(info.name, choices)
        if _ends_as_a_label(info.name, labels):
            names.append(info.name)
        if stem != now:
            alone.look(stem, group)
            yield from _samples(shard, group, choices)
            group, stem = [], now
        wanted = extension == choices.image_field if choices.image_field else choices.is_image(info.name)
        if wanted or extension in labels:
            if info.issparse():
                raise shard.refusal(
                    "it is sparse, its bytes do not lie together: pack it without --sparse", info.name
                )
            if not info.isreg():
                raise shard.refusal(
                    "it is a link: pack what it leads to (tar -h --hard-dereference)", info.name
                )
            # Read while its place is at hand; labels are short.
            small = extension in labels and info.size <= LABEL_FILE_BYTES
            content = shard.read(info.offset_data, info.size, info.name) if small else None
            group.append(
                _File(info.name, extension if not wanted else "", info.offset_data, info.size, content)
            )
    alone.look(stem, group)
    yield from _samples(shard, group, choices)


def _label_extensions(choices: Choices) -> tuple[str | None, ...]:
    return (choices.label_field, "json", *_LABELS) if choices.reads_labels else ()


class _Alone:
    """Sees that no label lies apart from its image, which would be taken for one without."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._images: set[str] = set()
        self._labels: set[str] = set()

    def look(self, stem: str, group: list[_File]) -> None:
        """Look at the files of a name that lie one after the other."""
        kinds = {bool(file.extension) for file in group}
        if len(kinds) != 1:
            return
        own, others = (self._labels, self._images) if kinds == {True} else (self._images, self._labels)
        own.add(stem)
        if stem in others:
            raise self._shard.error(
                "its image and its label do not lie beside each other: pack the files of a sample one after "
                "the other (tar --sort=name)",
                group[0].name,
            )


def _indexed_entries(shard: Shard, index: Shard) -> Iterator[tarfile.TarInfo]:
    """What the index names, and seen that the tar ends there; every member where the index names none."""
    found = indexed_members(shard, index)
    index.close()
    yield from found or ()
    for info in _tar_entries(shard, end_of(found[-1]) if found else 0):
        # Hidden files and links are not in it.
        if found and info.isreg() and not is_hidden(info.name):
            raise stale(shard, index, info.name)
        yield info


def _tar_entries(shard: Shard, begin: int = 0) -> Iterator[tarfile.TarInfo]:
    """Every member from there on but directories, seen to go on until the end mark."""
    if not begin:
        refuse_compressed(shard)
    try:
        file = ShardFile(shard, _HEADER_BYTES)
        file.seek(begin)
        # Not by tarfile.open, which would try to uncompress.
        tar = tarfile.TarFile(
            fileobj=file, tarinfo=_BoundedHeader, encoding="utf-8", errors="surrogateescape"
        )
        while (info := tar.next()) is not None:
            tar.members.clear()  # type: ignore[attr-defined]  # it would keep them all
            if not info.isdir():
                yield info
    except _BROKEN_TAR as error:
        raise shard.error(f"it is no tar, or cut off: {error}") from error
    # For tarfile a broken header is an end like any other.
    end = tar.offset
    if end + _BLOCK > shard.size:
        raise shard.error(f"it is cut off: at {end:,} there is no end mark (a block of zeros)")
    rest = shard.size - end
    if rest > _PADDING_BYTES or shard.read(end, rest).strip(b"\0"):
        raise shard.error(
            f"after {end:,} there is neither a header nor zeros up to its end: it is broken, or tars were "
            "appended to "
            "each other (pack them as one, or keep them apart)"
        )


def _samples(shard: Shard, group: list[_File], choices: Choices) -> Iterator[Member]:
    """The samples among files of one name: one with its label, or images that have none beside them."""
    images = [file for file in group if not file.extension]
    beside = {file.extension: file for file in group if file.extension}
    if not images or not beside:
        yield from (Member(file.name, file.offset, file.size) for file in images)
        return
    names_of = [file.name for file in group]
    if twice := next((name for name in names_of if names_of.count(name) > 1), None):
        raise shard.error(_TWICE, twice)
    if len(images) > 1 and not choices.fields:
        names = ", ".join(file.name for file in images)
        raise shard.error(
            f"a sample has several images ({names}): name one by --image-field EXTENSION, or, where their "
            "keys have dots, cut these by --key-at last-dot",
            images[0].name,
        )
    label = _label(shard, beside, choices)
    yield from (Member(image.name, image.offset, image.size, label) for image in images)


def _label(shard: Shard, beside: dict[str, _File], choices: Choices) -> Label | None:
    """The label that stands beside an image; ``None`` if it is not there."""
    own = [choices.label_field] if choices.label_field else list(_LABELS)
    for extension in own:
        if extension in beside:
            file = beside[extension]
            return text_label(file.content or b"", partial(shard.error, member=file.name))
    if "json" not in beside:
        return None
    file = beside["json"]
    field = choices.label_field or "label"
    return json_label(file.content or b"", field, partial(shard.error, member=file.name))


def zip_members(shard: Shard, choices: Choices) -> Iterator[Member]:
    """The images in a zip, stored or deflated.

    Raises:
        ShardError: it is cut off, broken or encrypted, or a member is packed in another way.
    """
    try:
        with zipfile.ZipFile(ShardFile(shard, _DIRECTORY_BYTES)) as archive:
            entries, directory = (
                sorted(archive.infolist(), key=lambda one: one.header_offset),
                archive.start_dir,
            )
    except _BROKEN_ZIP as error:
        raise shard.error(f"it is no zip, or cut off: {error}") from error
    extensions = _label_extensions(choices)
    names = [info.filename for info in entries if _ends_as_a_label(info.filename, extensions)]
    yield from _all_or_none(shard, _zip_samples(shard, choices, entries, directory), choices, names)


def _zip_samples(
    shard: Shard, choices: Choices, entries: list[zipfile.ZipInfo], directory: int
) -> Iterator[Member]:
    labels = _zip_labels(entries, choices)
    for info in entries:
        name = info.filename
        if not choices.is_image(name) or name.endswith("/") or is_hidden(name):
            continue
        if info.flag_bits & _ENCRYPTED:
            raise shard.refusal("it is encrypted: pack it without a password", name)
        if info.compress_type not in _ENCODINGS:
            raise shard.refusal("it is neither stored nor deflated: pack it again (zip -0)", name)
        offset = _data_offset(shard, info)
        if offset + info.compress_size > directory:
            raise shard.error("it reaches into the zip's directory: one of both is broken", name)
        length = info.compress_size if info.file_size else 0  # deflate makes two bytes of nothing
        beside = {
            extension: _File(one.filename, extension, 0, one.file_size, _content(shard, one))
            for extension, one in labels.get(_stem(name, choices)[0], {}).items()
        }
        label = _label(shard, beside, choices) if beside else None
        yield Member(name, offset, length, label, _ENCODINGS[info.compress_type])


def _zip_labels(entries: list[zipfile.ZipInfo], choices: Choices) -> dict[str, dict[str, zipfile.ZipInfo]]:
    """The files that may hold labels: by their names up to the first dot, and by what is after it."""
    extensions, found = _label_extensions(choices), dict[str, dict[str, zipfile.ZipInfo]]()
    for info in entries:
        stem, extension = _stem(info.filename, choices)
        if extension in extensions and not is_hidden(info.filename):
            found.setdefault(stem, {})[extension] = info
    return found


def _ends_as_a_label(name: str, extensions: tuple[str | None, ...]) -> bool:
    """Whether what follows the last dot is the extension of a label, and its image may be sought by that."""
    return not is_hidden(name) and name.rpartition(".")[2] in extensions


def _stem(name: str, choices: Choices) -> tuple[str, str]:
    """A sample's key, and what is after it."""
    folder, slash, base = name.rpartition("/")
    if choices.key_at == "last-dot":
        first, _, extension = base.rpartition(".")
    else:
        first, _, extension = base.partition(".")
    return folder + slash + first, extension


def _content(shard: Shard, info: zipfile.ZipInfo) -> bytes | None:
    """A label's file; ``None`` for one that is too long for a label."""
    if max(info.file_size, info.compress_size) > LABEL_FILE_BYTES:
        return None
    if info.flag_bits & _ENCRYPTED or info.compress_type not in _ENCODINGS:
        raise shard.refusal("it is encrypted, or neither stored nor deflated: pack it again", info.filename)
    packed = shard.read(_data_offset(shard, info), info.compress_size, info.filename)
    if info.compress_type == zipfile.ZIP_STORED:
        return packed
    try:
        content = zlib.decompressobj(-zlib.MAX_WBITS).decompress(packed, info.file_size + 1)
    except zlib.error as error:
        raise shard.error(f"it cannot be inflated: {error}", info.filename) from error
    if len(content) != info.file_size:
        raise shard.error(
            f"it is not the {info.file_size:,} bytes that the zip's directory says: the zip is broken",
            info.filename,
        )
    return content


def _data_offset(shard: Shard, info: zipfile.ZipInfo) -> int:
    """Where a member's bytes begin: only its local header knows how long that is."""
    at, name = info.header_offset, info.filename
    magic, _, flags, method, _, _, _, _, _, name_bytes, extra_bytes = _LOCAL.unpack(
        shard.read(at, _LOCAL.size, name)
    )
    own = shard.read(at + _LOCAL.size, name_bytes, name).decode(
        "utf-8" if info.flag_bits & _UTF8 else "cp437", errors="replace"
    )
    if (
        magic != _LOCAL_MAGIC
        or method != info.compress_type
        or own != info.orig_filename
        or flags & _ENCRYPTED
    ):
        raise shard.error("its local header is not the one of the zip's directory: the zip is broken", name)
    if info.compress_type == zipfile.ZIP_STORED and info.file_size != info.compress_size:
        raise shard.error("it is stored, and its two sizes differ: the zip is broken", name)
    return int(at + _LOCAL.size + name_bytes + extra_bytes)
