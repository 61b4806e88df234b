"""Tar and zip archives. Members are named by path, and labelled by a label file or their folder."""

from __future__ import annotations

import posixpath
import re
import struct
import tarfile
import zipfile
import zlib
from functools import partial
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from superdl.index.loose import LABEL_FILE_BYTES, label_in
from superdl.index.shard import Member, ShardFile
from superdl.super_wire.source_url import is_hidden

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from superdl.index.choices import Choices
    from superdl.index.shard import Label, Shard

_BLOCK = tarfile.BLOCKSIZE
_PADDING_BYTES = 2**24  # zeros allowed after the end marker, since tar -b pads to whole records
_HEADER_BYTES = 2**16  # of a long name, or of a pax header
_DIGITS = re.compile(rb"[0-9]{256}")  # in a pax header: Python takes minutes for long numbers
_PAX = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
_EXTENDED = (*_PAX, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
_LABELS = ("cls", "cls.txt")
# Errors of Python's parsers for bytes that are not an archive.
_BROKEN_TAR = (tarfile.TarError, ValueError, OverflowError, RecursionError, IndexError, KeyError)
_BROKEN_ZIP = (zipfile.BadZipFile, NotImplementedError, ValueError, OverflowError, struct.error, EOFError)

_DIRECTORY_BYTES = 2**30  # of a zip; some hundred bytes per member
_LOCAL = struct.Struct("<4s5H3I2H")
_UTF8 = 0x800
_ENCRYPTED = 0x2041  # encrypted, strongly encrypted, or with a masked header
_ENCODINGS = {zipfile.ZIP_STORED: "", zipfile.ZIP_DEFLATED: "deflate"}


class _File(NamedTuple):
    """A file in an archive. ``locate`` returns its offset, length and encoding, or raises ``ShardError``."""

    name: str
    size: int
    locate: Callable[[], tuple[int, int, str]]


class _Archive:
    """Groups the files of an archive into images and their labels."""

    def __init__(self, shard: Shard, choices: Choices, *, webdataset: bool) -> None:
        # webdataset: an image field is a whole extension, and a label belongs to one image.
        self._shard, self._choices, self._webdataset = shard, choices, webdataset
        extensions = (choices.label_field,) if choices.label_field else _LABELS
        self._labels = (*extensions, "json") if choices.reads_labels else ()
        self._lone: dict[str, str] = {}  # label files without an image beside them, by key or stem

    def split(self, name: str) -> tuple[str, str]:
        """Split a file's name into the sample's key and the extension that follows it."""
        folder, slash, base = name.rpartition("/")
        last = self._choices.key_at == "last-dot"
        first, _, extension = base.rpartition(".") if last else base.partition(".")
        return folder + slash + first, extension

    def members(self, files: Iterable[_File]) -> Iterator[Member]:
        """Yield the images among files that are grouped by sample. Either all images have a label or none."""
        first, bare = dict[bool, str](), dict[str, str]()  # one image with and one without label; see _lone
        # As in WebDataset, files of a sample share a name up to the first dot, and are adjacent.
        for key, group in groupby(files, lambda file: self.split(file.name)[0]):
            images, labels = self._parted(group)
            if labels and not images:
                self._lone[key] = next(iter(labels.values())).name
            if self._webdataset and labels and len(images) > 1 and not self._choices.fields:
                why = f"a sample has several images ({', '.join(file.name for file in images)})"
                remedy = (
                    "choose one with --image-field EXTENSION, or use --key-at last-dot for keys with dots"
                )
                raise self._shard.error(f"{why}: {remedy}", images[0].name)
            label = self._label(labels) if images else None
            for name, size, locate in images:
                first.setdefault(label is not None, name)
                bare |= {} if labels else {key: name, posixpath.splitext(name)[0]: name}
                offset, length, encoding = locate()
                yield Member(name, offset, length if size else 0, label, encoding)
        dot = self._choices.key_at.replace("-", " ")
        for stem in sorted(bare.keys() & self._lone.keys()):
            file = self._lone[stem]
            why = f"{file} is not its label, since keys end at their {dot}: try --key-at last-dot"
            if self.split(file)[1] in self._labels:
                why = f"not adjacent to its label ({file}): sort the files (tar --sort=name)"
            raise self._shard.error(why, bare[stem])
        if len(first) > 1:
            why = f"no label file, although {first[True]} has one (keys end at their {dot})"
            raise self._shard.error(f"{why}: add one, or use --labels folder for all", first[False])

    def _parted(self, sample: Iterable[_File]) -> tuple[list[_File], dict[str, _File]]:
        images, labels, field = list[_File](), dict[str, _File](), self._choices.image_field
        for file in sample:
            extension = self.split(file.name)[1]
            if any(file.name == other.name for other in (*images, *labels.values())):
                raise self._shard.error("duplicate name: give each file a unique name", file.name)
            if extension == field if field and self._webdataset else self._choices.is_image(file.name):
                images.append(file)
            elif extension in self._labels:
                labels[extension] = file
            elif extension.rpartition(".")[2] in self._labels:
                self._lone[posixpath.splitext(file.name)[0]] = file.name
        return images, labels

    def _label(self, labels: dict[str, _File]) -> Label | None:
        file = next((labels[extension] for extension in self._labels if extension in labels), None)
        if file is None:
            return None
        fail = partial(self._shard.error, member=file.name)
        offset, length, encoding = file.locate()
        content = b""
        if max(file.size, length) <= LABEL_FILE_BYTES:
            content = self._shard.read(offset, length, file.name)
            try:
                if encoding:
                    # One byte more than declared is enough to see that the size is wrong.
                    content = zlib.decompressobj(-zlib.MAX_WBITS).decompress(content, file.size + 1)
            except zlib.error as error:
                raise fail(f"cannot be decompressed: {error}") from error
            if len(content) != file.size:
                raise fail(f"size differs from the {file.size:,} bytes stated in the directory")
        return label_in(file.name, content, self._choices, fail)


class _BoundedHeader(tarfile.TarInfo):
    """A tar header that limits the size of its extended headers before they are parsed."""

    def _proc_member(self, archive: Any) -> tarfile.TarInfo:
        # tarfile reads as many bytes as the header declares.
        if self.type in _EXTENDED:
            at = archive.fileobj.tell()
            content = archive.fileobj.read(self.size) if 0 <= self.size <= _HEADER_BYTES else None
            archive.fileobj.seek(at)
            if content is None or (self.type in _PAX and _DIGITS.search(content)):
                raise tarfile.ReadError(
                    f"an extended header ({self.size:,} bytes), or a number in it, is too long"
                )
        return super()._proc_member(archive)  # type: ignore[misc, no-any-return]  # not in typeshed


def tar_members(shard: Shard, choices: Choices) -> Iterator[Member]:
    """Yield the images in a tar, with their labels."""

    def locate(info: tarfile.TarInfo) -> tuple[int, int, str]:
        if info.issparse() or not info.isreg():
            sparse = "sparse files cannot be read: archive without --sparse"
            link = "links cannot be read: archive the target (tar -h --hard-dereference)"
            raise shard.error(sparse if info.issparse() else link, info.name)
        return info.offset_data, info.size, ""

    def files() -> Iterator[_File]:
        for info in _tar_entries(shard):
            if not is_hidden(info.name):
                shard.check(info.offset_data, info.size, info.name)
                yield _File(info.name, info.size, partial(locate, info))

    return _Archive(shard, choices, webdataset=True).members(files())


def _tar_entries(shard: Shard) -> Iterator[tarfile.TarInfo]:
    """Yield every member except directories, up to the end-of-archive marker, which is required."""
    shard.refuse_compressed()
    try:
        # Not tarfile.open, which would try to decompress.
        file = ShardFile(shard, _HEADER_BYTES)
        tar = tarfile.TarFile(fileobj=file, tarinfo=_BoundedHeader, errors="surrogateescape", encoding="utf8")
        while (info := tar.next()) is not None:
            tar.members.clear()  # type: ignore[attr-defined]  # it would keep them all
            if not info.isdir():
                yield info
    except _BROKEN_TAR as error:
        raise shard.error(f"not a tar, or truncated: {error}") from error
    # tarfile treats a corrupt header as an end.
    end, tail = tar.offset, shard.size - tar.offset
    if tail < _BLOCK:
        raise shard.error(f"truncated: no end-of-archive marker (zero block) at byte {end:,}")
    if tail > _PADDING_BYTES or shard.read(end, tail).strip(b"\0"):
        why = "the tar is corrupt, or tars were appended to each other (combine or separate them)"
        raise shard.error(f"neither a header nor only zeros follow {end:,}: {why}")


def zip_members(shard: Shard, choices: Choices) -> Iterator[Member]:
    """Yield the images in a zip, stored or deflated, with labels from files beside them."""
    try:
        with zipfile.ZipFile(ShardFile(shard, _DIRECTORY_BYTES)) as zip_file:
            infos, directory = zip_file.infolist(), zip_file.start_dir
    except _BROKEN_ZIP as error:
        raise shard.error(f"not a zip, or truncated: {error}") from error
    infos = [info for info in infos if not info.filename.endswith("/") and not is_hidden(info.filename)]
    infos.sort(key=lambda info: info.header_offset)
    archive = _Archive(shard, choices, webdataset=False)
    samples: dict[str, list[_File]] = {}  # whose files need not be adjacent
    for info in infos:
        file = _File(info.filename, info.file_size, partial(_locate_in_zip, shard, info, directory))
        samples.setdefault(archive.split(file.name)[0], []).append(file)
    return archive.members(chain.from_iterable(samples.values()))


def _locate_in_zip(shard: Shard, info: zipfile.ZipInfo, directory: int) -> tuple[int, int, str]:
    name, at = info.filename, info.header_offset
    if info.flag_bits & _ENCRYPTED:
        raise shard.error("encrypted: archive it without a password", name)
    if info.compress_type not in _ENCODINGS:
        raise shard.error("neither stored nor deflated: archive it again (zip -0)", name)
    # Only the local header has the length of its own name and extra field.
    magic, _, flags, method, *_, name_bytes, extra_bytes = _LOCAL.unpack(shard.read(at, _LOCAL.size, name))
    encoding = "utf-8" if info.flag_bits & _UTF8 else "cp437"
    local_name = shard.read(at + _LOCAL.size, name_bytes, name).decode(encoding, errors="replace")
    offset = at + _LOCAL.size + name_bytes + extra_bytes
    header = magic, method, local_name, flags & _ENCRYPTED, offset + info.compress_size <= directory
    if header != (b"PK\3\4", info.compress_type, info.orig_filename, 0, True):
        raise shard.error("local header differs from the central directory: the zip is corrupt", name)
    if info.compress_type == zipfile.ZIP_STORED and info.file_size != info.compress_size:
        raise shard.error("stored, but its two sizes differ: the zip is corrupt", name)
    return offset, info.compress_size, _ENCODINGS[info.compress_type]
