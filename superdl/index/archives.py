"""Tars and zips: members are files, named by paths, and labelled by a file beside them or by their folder.

A sample is the files that share a name up to the first dot, as WebDataset writes it; in a tar they follow
each other. Python's own ``tarfile`` and ``zipfile`` read the headers; that an archive is whole is seen here.
"""

from __future__ import annotations

import posixpath
import re
import struct
import tarfile
import zipfile
import zlib
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from superdl.index.indexes import end_of, indexed_members, stale
from superdl.index.loose import LABEL_FILE_BYTES, json_label, text_label
from superdl.index.shard import Member, ShardFile, refuse_compressed
from superdl.super_wire.hidden_names import is_hidden

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from superdl.index.choices import Choices
    from superdl.index.shard import Label, Shard, Shards

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


class _File(NamedTuple):
    """A file in an archive of ``size`` bytes. ``place`` gives offset, length and encoding of its bytes, and
    refuses what cannot be read in place.
    """

    name: str
    size: int
    place: Callable[[], tuple[int, int, str]]


def _members(
    shard: Shard,
    choices: Choices,
    files: Iterable[_File],
    is_image: Callable[[str], bool],
    *,
    one_image: bool = False,
) -> Iterator[Member]:
    """The images among files, each with the label that lies beside it: beside each image, or beside none.

    A label may be of ``one_image`` alone.
    """
    extensions = (choices.label_field, "json", *_LABELS) if choices.reads_labels else ()
    apart: dict[bool, set[str]] = {True: set(), False: set()}  # keys of labels alone, of images alone
    first: dict[bool, str] = {}  # an image with a label, and one without
    names, bare = list[str](), dict[str, str]()
    for key, group in groupby(files, lambda file: _split(file.name, choices)[0]):
        sample = list(group)
        names += [file.name for file in sample if file.name.rpartition(".")[2] in extensions]
        images = [file for file in sample if is_image(file.name)]
        others = [(file, _split(file.name, choices)[1]) for file in sample if file not in images]
        labels = {extension: file for file, extension in others if extension in extensions}
        if bool(images) != bool(labels):
            apart[bool(labels)].add(key)
            if key in apart[not labels]:
                raise shard.error(
                    "its image and its label do not lie beside each other: pack the files of a sample one "
                    "after the other (tar --sort=name)",
                    [*images, *labels.values()][0].name,
                )
        elif one_image and images:
            _check_one(
                shard, choices, images, [file for file, extension in others if extension in extensions]
            )
        label = _label(shard, labels, choices) if images else None
        for name, size, place in images:
            first.setdefault(label is None, name)
            if label is None:
                bare[posixpath.splitext(name)[0]] = name
            offset, length, encoding = place()
            yield Member(name, offset, length if size else 0, label, encoding)
    _check_labels(shard, choices, names, bare, first)


def _check_one(shard: Shard, choices: Choices, images: list[_File], labels: list[_File]) -> None:
    """Refuse a key that several samples share, or whose label may be of several images."""
    names = [file.name for file in (*images, *labels)]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise shard.error(
            "its name comes more than once, so that samples share a key: pack each under a key of its own",
            twice,
        )
    if len(images) > 1 and not choices.fields:
        raise shard.error(
            f"a sample has several images ({', '.join(names[: len(images)])}): name one by --image-field "
            "EXTENSION, or, where their keys have dots, cut these by --key-at last-dot",
            names[0],
        )


def _check_labels(
    shard: Shard, choices: Choices, names: list[str], bare: dict[str, str], first: dict[bool, str]
) -> None:
    """Refuse an archive of labels whose key is cut before their image's, or of a part of the images.

    ``names`` are of files with the extension of a label; ``bare`` images without one, by key.
    """
    dot = choices.key_at.replace("-", " ")
    for name in names:
        key = posixpath.splitext(name)[0]
        if (image := bare.get(key)) and (cut := _split(image, choices)[0]) != key:
            raise shard.error(
                f"its key is {cut!r}, up to its {dot}, so that {name} is not its label: --key-at last-dot "
                "cuts keys at their last dot",
                image,
            )
    if len(first) > 1:
        raise shard.error(
            f"no label stands beside it, and one beside {first[False]} (keys end at their {dot} (--key-at)): "
            "give it one, or --labels folder takes the folder's name for all",
            first[True],
        )


def _split(name: str, choices: Choices) -> tuple[str, str]:
    """A sample's key, and its extension after it."""
    folder, slash, base = name.rpartition("/")
    first, _, extension = base.rpartition(".") if choices.key_at == "last-dot" else base.partition(".")
    return folder + slash + first, extension


def _label(shard: Shard, labels: dict[str, _File], choices: Choices) -> Label | None:
    """The label of an image out of the files beside it, by extension; ``None`` if none says it."""
    own = (choices.label_field,) if choices.label_field else _LABELS
    for extension in (*own, "json"):
        if extension in labels:
            file = labels[extension]
            fail = partial(shard.error, member=file.name)
            if extension in own:
                return text_label(_content(shard, file), fail)
            return json_label(_content(shard, file), choices.label_field or "label", fail)
    return None


def _content(shard: Shard, file: _File) -> bytes:
    """A label's file; empty for one that is too long for a label."""
    offset, length, encoding = file.place()
    if max(file.size, length) > LABEL_FILE_BYTES:
        return b""
    content = shard.read(offset, length, file.name)
    if encoding:
        try:
            content = zlib.decompressobj(-zlib.MAX_WBITS).decompress(content, file.size + 1)
        except zlib.error as error:
            raise shard.error(f"it cannot be inflated: {error}", file.name) from error
    if len(content) != file.size:
        raise shard.error(
            f"it is not the {file.size:,} bytes that the zip's directory says: the zip is broken", file.name
        )
    return content


# ------------------------------------------------------------------------------------------------------ tars


class _BoundedHeader(tarfile.TarInfo):
    """A header of a tar whose extended headers are looked at before Python's parser takes them."""

    def _proc_member(self, archive: Any) -> tarfile.TarInfo:
        """Read what belongs to this header, as subclasses of ``TarInfo`` may."""
        if self.type in _EXTENDED:
            if not 0 <= self.size <= _HEADER_BYTES:
                raise tarfile.ReadError(
                    f"an extended header has {self.size:,} bytes; at most {_HEADER_BYTES:,} are read"
                )
            at = archive.fileobj.tell()
            if self.type in _PAX and _NUMBERS.search(archive.fileobj.read(self.size)):
                raise tarfile.ReadError(f"a pax header has more than {_DIGITS_MAX} digits in a row")
            archive.fileobj.seek(at)
        return super()._proc_member(archive)  # type: ignore[misc, no-any-return]  # not in typeshed


def tar_members(
    shard: Shard, choices: Choices, shards: Shards | None = None, index: str = ""
) -> Iterator[Member]:
    """The images in a tar, with the labels in files beside them.

    ``index`` is the key, among ``shards``, of an index file that may say where they lie.
    """

    def place(info: tarfile.TarInfo) -> tuple[int, int, str]:
        if info.issparse():
            raise shard.refusal(
                "it is sparse, its bytes do not lie together: pack it without --sparse", info.name
            )
        if not info.isreg():
            raise shard.refusal("it is a link: pack what it leads to (tar -h --hard-dereference)", info.name)
        return info.offset_data, info.size, ""

    def files() -> Iterator[_File]:
        entries = _indexed_entries(shard, shards.open(index)) if shards and index else _tar_entries(shard)
        for info in entries:
            if not is_hidden(info.name):
                shard.check(info.offset_data, info.size, info.name)
                yield _File(info.name, info.size, partial(place, info))

    def is_image(name: str) -> bool:  # a field is all after the first dot: seg.png is not png
        field = choices.image_field
        return _split(name, choices)[1] == field if field else choices.is_image(name)

    return _members(shard, choices, files(), is_image, one_image=True)


def _indexed_entries(shard: Shard, index: Shard) -> Iterator[tarfile.TarInfo]:
    """The index's files, once the tar is seen to end there; every member where the index names none."""
    infos = indexed_members(shard, index)
    yield from infos or ()
    for info in _tar_entries(shard, end_of(infos[-1]) if infos else 0):
        # Hidden files and links are not in it.
        if infos and info.isreg() and not is_hidden(info.name):
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
            "appended to each other (pack them as one, or keep them apart)"
        )


# ------------------------------------------------------------------------------------------------------ zips


def zip_members(shard: Shard, choices: Choices) -> Iterator[Member]:
    """The images in a zip, stored or deflated, with the labels in files beside them, in any order."""
    try:
        with zipfile.ZipFile(ShardFile(shard, _DIRECTORY_BYTES)) as archive:
            infos, directory = archive.infolist(), archive.start_dir
    except _BROKEN_ZIP as error:
        raise shard.error(f"it is no zip, or cut off: {error}") from error
    infos = [info for info in infos if not info.filename.endswith("/") and not is_hidden(info.filename)]
    # The files of a sample after each other, samples as they lie.
    begins = dict[str, int]()
    for info in sorted(infos, key=lambda info: info.header_offset):
        begins.setdefault(_split(info.filename, choices)[0], info.header_offset)
    infos.sort(key=lambda info: (begins[_split(info.filename, choices)[0]], info.header_offset))
    files = (
        _File(info.filename, info.file_size, partial(_place_in_zip, shard, info, directory)) for info in infos
    )
    return _members(shard, choices, files, choices.is_image)


def _place_in_zip(shard: Shard, info: zipfile.ZipInfo, directory: int) -> tuple[int, int, str]:
    """Where the bytes of a file lie: only its local header knows how long that is."""
    name, at = info.filename, info.header_offset
    if info.flag_bits & _ENCRYPTED:
        raise shard.refusal("it is encrypted: pack it without a password", name)
    if info.compress_type not in _ENCODINGS:
        raise shard.refusal("it is neither stored nor deflated: pack it again (zip -0)", name)
    magic, _, flags, method, _, _, _, _, _, name_bytes, extra_bytes = _LOCAL.unpack(
        shard.read(at, _LOCAL.size, name)
    )
    encoding = "utf-8" if info.flag_bits & _UTF8 else "cp437"
    own = shard.read(at + _LOCAL.size, name_bytes, name).decode(encoding, errors="replace")
    header = magic, method, own, flags & _ENCRYPTED
    if header != (_LOCAL_MAGIC, info.compress_type, info.orig_filename, 0):
        raise shard.error("its local header is not the one of the zip's directory: the zip is broken", name)
    if info.compress_type == zipfile.ZIP_STORED and info.file_size != info.compress_size:
        raise shard.error("it is stored, and its two sizes differ: the zip is broken", name)
    offset = at + _LOCAL.size + name_bytes + extra_bytes
    if offset + info.compress_size > directory:
        raise shard.error("it reaches into the zip's directory: one of both is broken", name)
    return offset, info.compress_size, _ENCODINGS[info.compress_type]
