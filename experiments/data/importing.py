"""Takes published sets as they are downloaded: checks an archive, and lays it out where `data.kind` finds it.

Nothing is unpickled, so of CIFAR-10 the binary version is taken. No name in an archive reaches outside of the
new directory, which is written whole or not at all.
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
import shutil
import stat
import tarfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from superdl.experiments.data.whole_directory import check_room, written_once
from superdl.experiments.image_sets import PUBLISHED_SETS
from superdl.super_wire.errors import ConfigError, SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from superdl.experiments.image_sets import PublishedSet

__all__ = ["import_published"]

_DAMAGE = (
    *(tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, lzma.LZMAError),
    *(EOFError, NotImplementedError),
)
"""What their readers raise; NotImplementedError for packing that no set has."""
_MOST_BYTES = 4 * 2**30
_BLOCK_BYTES = 4096
_PYTHON_CIFAR = "cifar-10-python.tar.gz"
_CIFAR_CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
_CIFAR_FILES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
_CIFAR_BYTES = 2**28  # the archive has 184 million
_CIFAR_ROWS = 60_000
_CIFAR_ROW_BYTES = 1 + 3 * 32 * 32  # the class, then the planes of red, green and blue


def import_published(
    file: Path,
    directory: str | Path | None = None,
    *,
    any_digest: bool = False,
    sets: Mapping[str, PublishedSet] = PUBLISHED_SETS,
    tell: Callable[[str], None] = lambda _: None,
) -> tuple[str, Path]:
    """Lay a downloaded set out below ``directory``: the set's name, and the directory's absolute path.

    Args:
        file: by the name that it was published under; what else belongs to the set lies beside it.
        directory: where to; None: where specs look for the set. Nothing may be there but this very set.
        any_digest: take a file of another size and digest too.
        sets: the sets that are known, with their files.
        tell: gets lines for people.

    Raises:
        ConfigError: no set has such a file, or the place cannot be written.
        SourceError: a file is absent, another than was published, or damaged; or something else is there.

    """
    published = next((one for one in sets.values() if file.name in one.files), None)
    if published is None:
        why = "holds pickles, which can run code: take the binary version"
        why = why if file.name == _PYTHON_CIFAR else "is no file of a set that is known"
        names = ", ".join(name for one in sets.values() for name in one.files)
        raise ConfigError(f"{file.name} {why}; files that are taken, by these names: {names}")
    digests = {}
    for name, (size_bytes, digest) in published.files.items():
        found = _size_and_digest(file.with_name(name), digest.partition(":")[0])
        if found != (size_bytes, digest) and not any_digest:
            raise SourceError(
                f"{file.with_name(name)} is not as published: it has {found[0]:,} bytes and {found[1]}, not "
                f"{size_bytes:,} and {digest}; download it again, or take it as it is by --any-digest"
            )
        digests[name] = found[1]
    target = Path(directory or Path("data") / published.folder).expanduser().absolute()

    def fill(staging: Path) -> None:
        tell(f"taking {', '.join(digests)} into {target}")
        try:
            if file.suffix == ".zip":
                _unzip(file, published.folder, staging, target)
            elif file.name.endswith(".tar.gz"):
                _write_cifar(file, staging, target)
            else:  # MNIST's files are found as they are
                for name in digests:
                    shutil.copyfile(file.with_name(name), staging / name)
        except _DAMAGE as error:
            raise SourceError(f"{file} is damaged ({error}): download it again") from error

    written_once(target, {"name": published.name, "format": 1, "files": digests}, published.name, fill)
    return published.name, target


def _size_and_digest(path: Path, algorithm: str) -> tuple[int, str]:
    try:
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, algorithm).hexdigest()
            return stream.tell(), f"{algorithm}:{digest}"
    except OSError as error:
        raise SourceError(f"{path} cannot be read ({error.strerror}): put it there, by this name") from error


def _unzip(path: Path, folder: str, staging: Path, target: Path) -> None:
    """What lies in an archive's folder; other things, as macOS adds them, are not taken."""
    with zipfile.ZipFile(path) as archive:
        taken = {}
        for member in archive.infolist():
            name, mode = PurePosixPath(member.filename), member.external_attr >> 16
            outside = "\\" in member.filename or name.is_absolute() or ".." in name.parts
            if outside or stat.S_ISLNK(mode) or member.flag_bits & 1:
                raise SourceError(
                    f"{path} has {member.filename!r}, encrypted, a link, or not below it: refused"
                )
            if name.parts[:1] == (folder,) and not member.is_dir():
                taken[staging.joinpath(*name.parts[1:])] = member
        size_bytes = sum(member.file_size + _BLOCK_BYTES for member in taken.values())
        if size_bytes > _MOST_BYTES:
            raise SourceError(f"{path} unpacks to over {_MOST_BYTES:,} bytes: refused as another archive")
        check_room(target, size_bytes, path.name)
        for place, member in taken.items():
            place.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(member) as packed, place.open("xb") as file:
                shutil.copyfileobj(packed, file)
    if not (staging / "train").is_dir():
        raise SourceError(f"{path} has no {folder}/train: it is another archive")


def _write_cifar(path: Path, staging: Path, target: Path) -> None:
    """The binary version's six files as PNG files, ``train/<class>/`` and ``test/<class>/``."""
    import numpy as np  # not for a look at which sets there are
    from PIL import Image

    check_room(target, _CIFAR_ROWS * _BLOCK_BYTES, "CIFAR-10 as PNG files")
    with gzip.open(path) as unpacked:
        content = unpacked.read(_CIFAR_BYTES + 1)
    if len(content) > _CIFAR_BYTES:
        raise SourceError(f"{path} unpacks to over {_CIFAR_BYTES:,} bytes: it is another archive")
    members = dict(_tar_files(memoryview(content)))
    for batch in _CIFAR_FILES:
        packed = members.get(f"cifar-10-batches-bin/{batch}.bin", b"")
        if not packed or len(packed) % _CIFAR_ROW_BYTES:
            raise SourceError(f"{path} has no whole images in {batch}.bin: it is another archive")
        rows: Any = np.frombuffer(packed, np.uint8).reshape(-1, _CIFAR_ROW_BYTES)
        if rows[:, 0].max() >= len(_CIFAR_CLASSES):
            raise SourceError(f"{path}: {batch}.bin has the class {rows[:, 0].max()}; there are ten")
        split = staging / ("test" if batch == "test_batch" else "train")
        for label in _CIFAR_CLASSES:
            (split / label).mkdir(parents=True, exist_ok=True)
        images = np.ascontiguousarray(rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
        for index, (image, label) in enumerate(zip(images, rows[:, 0], strict=True)):
            place = split / _CIFAR_CLASSES[label] / f"{batch}_{index:05d}.png"
            Image.fromarray(image).save(place, compress_level=3)


def _tar_files(content: memoryview) -> Iterator[tuple[str, memoryview]]:
    """Yield name and content of each plain file in a tar.

    Extended headers, over which tarfile may sit for minutes, are skipped.
    """
    at = 0
    while any(block := content[at : at + tarfile.BLOCKSIZE]):
        member = tarfile.TarInfo.frombuf(block.tobytes(), "utf-8", "surrogateescape")
        at += tarfile.BLOCKSIZE
        if not 0 <= member.size <= len(content) - at:
            raise tarfile.ReadError(f"{member.name[:80]!r} has {member.size} bytes, beyond the archive's end")
        if member.isreg():
            yield member.name, content[at : at + member.size]
        at += -(-member.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
