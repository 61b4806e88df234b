"""Upload a directory to S3 in parallel, skipping files that are already there."""

from __future__ import annotations

import base64
import hashlib
import mimetypes
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from superdl.super_wire.errors import ConfigError, SourceError, SourceNotFoundError
from superdl.super_wire.objects import ObjectError, open_bucket
from superdl.super_wire.source_url import split_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from superdl.super_wire.objects import Bucket

_MAX_BYTES = 5 * 2**30  # of an object in a single request
_MAX_FAILURES = 20


def push(
    directory: Path, url: str, *, workers: int = 16, done: Callable[[int, int], None] = lambda *_: None
) -> dict[str, int]:
    """Upload all files in ``directory`` to ``url`` (``s3://bucket/prefix``), keeping their relative paths.

    Return a dict of counts: all ``files``, those ``sent``, those already ``there``, and the ``bytes`` sent.
    ``done`` is called for each file sent or already there, with its size and the total size, in bytes.

    Raises:
        ConfigError: ``url`` is not on S3.
        SourceNotFoundError: the directory does not exist.
        SourceError: the bucket cannot be listed, an entry is not a readable file, or some files were not
            sent. The message lists up to 20 failures, after which no more files are sent.
    """
    bucket, prefix = split_url(url, "the place")
    if not bucket.startswith("s3://"):
        raise ConfigError(f"the target must be s3://bucket/prefix, not {url!r}")
    client, prefix = open_bucket(bucket), f"{prefix.strip('/')}/".lstrip("/")
    # Read all folders first, to find entries that cannot be sent before any upload.
    folders = list(_folders(directory))
    files = sum(len(sizes) for _, sizes in folders)
    all_bytes = sum(sum(sizes.values()) for _, sizes in folders)
    counts, failures = {"files": files, "sent": 0, "there": 0, "bytes": 0}, list[str]()

    def send(path: Path, key: str, known: tuple[int, str] | None) -> tuple[bool, int] | None:
        if len(failures) < _MAX_FAILURES:
            try:
                return _send(client, path, key, known)
            except SourceError as error:
                failures.append(str(error))
        return None

    with ThreadPoolExecutor(workers) as pool:
        for folder, sizes in folders:
            below = prefix + "".join(f"{part}/" for part in folder.relative_to(directory).parts)
            # Listing each folder bounds memory and saves a request per file.
            known = _objects(client, below)
            keys = [below + name for name in sizes]
            paths = [folder / name for name in sizes]
            for sent in pool.map(send, paths, keys, map(known.get, keys)):
                if sent is None:
                    continue
                was_sent, size_bytes = sent
                counts["sent" if was_sent else "there"] += 1
                counts["bytes"] += size_bytes * was_sent
                done(size_bytes, all_bytes)
            if len(failures) >= _MAX_FAILURES:
                break
    if failures:
        missing = files - counts["sent"] - counts["there"]
        raise SourceError(
            f"{missing:,} of {files:,} files are not in {url}. Fix the errors, and push again to send the "
            f"rest: {'; '.join(failures[:_MAX_FAILURES])}"
        )
    return counts


def _objects(client: Bucket, below: str) -> dict[str, tuple[int, str]]:
    try:
        pages = client.pages(below, folders=True)
        return {item.key: (item.size, item.version) for page in pages for item in page.objects}
    except ObjectError as error:
        raise SourceError(
            f"cannot list {client.name}/{below}: {error}. Pushing needs AWS credentials that allow "
            "s3:ListBucket and s3:PutObject, and SUPER_S3_ENDPOINT_URL for a store other than AWS."
        ) from error


def _send(client: Bucket, path: Path, key: str, known: tuple[int, str] | None) -> tuple[bool, int]:
    """Send a file unless it is there. Return whether it was sent, and its size, or raise SourceError."""
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False))
            size_bytes = file.tell()
            # The ETag is the MD5, except in buckets encrypted with KMS, where all files are sent again.
            if known == (size_bytes, digest.hexdigest()):
                return False, size_bytes
            if size_bytes > _MAX_BYTES:
                raise SourceError(f"{path} is larger than {_MAX_BYTES:,} bytes")
            kind = mimetypes.guess_type(key)[0] or ""
            # The store refuses content that does not match the digest.
            client.put(key, file, content_type=kind, md5=base64.b64encode(digest.digest()).decode())
    except (OSError, ValueError, ObjectError) as error:
        raise SourceError(f"{path}: {error}") from error
    return True, size_bytes


def _folders(directory: Path) -> Iterator[tuple[Path, dict[str, int]]]:
    """Yield each folder and its file sizes by name. Raise SourceError for entries that cannot be sent."""

    def refuse(error: OSError) -> NoReturn:
        raise SourceError(f"cannot read {error.filename}: {error.strerror}") from error

    if not directory.is_dir():
        raise SourceNotFoundError(f"there is no directory {directory.absolute()}")
    for place, below, names in os.walk(directory, onerror=refuse):
        below.sort()
        folder, sizes = Path(place), {}
        for name in sorted(names):
            try:
                known = (folder / name).stat()
            except OSError as error:
                refuse(error)
            if not stat.S_ISREG(known.st_mode):
                raise SourceError(f"cannot push {folder / name}: it is not a file")
            sizes[name] = known.st_size
        # os.walk does not follow links, so their files would be missing.
        for name in below:
            if (folder / name).is_symlink():
                raise SourceError(
                    f"cannot push {folder / name}: it links to a directory. Push its target separately."
                )
        yield folder, sizes
