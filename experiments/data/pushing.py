"""Upload a directory to S3 in parallel, each file atomically, and skip files already there."""

from __future__ import annotations

import base64
import hashlib
import mimetypes
import os
import stat
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from superdl.super_wire.errors import ConfigError, SourceError, SourceNotFoundError
from superdl.super_wire.objects import ObjectError, open_bucket
from superdl.super_wire.source_url import split_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from superdl.super_wire.objects import Bucket

_MOST_BYTES = 5 * 2**30  # of an object in a single request
_MOST_FAILURES = 20
_AHEAD = 4  # queued files for each worker


def push(
    directory: Path, url: str, *, workers: int = 16, done: Callable[[int, int], None] = lambda *_: None
) -> dict[str, int]:
    """Upload all files below ``directory`` to ``url``, ``s3://bucket/prefix``, under their relative paths.

    ``done`` is called for each file sent or already there, with its size and the total in bytes.
    Return the total number of ``files``, how many were ``sent`` or already ``there``, and ``bytes`` sent.

    Raises:
        ConfigError: ``url`` is not on S3.
        SourceNotFoundError: there is no such directory.
        SourceError: the bucket cannot be listed, an entry is not a readable file, or files were not sent. The
        message lists up to 20 of them, after which no more are tried.
    """
    bucket, prefix = split_url(url, "the place")
    if not bucket.startswith("s3://"):
        raise ConfigError(f"the target must be s3://bucket/prefix, not {url!r}")
    client, prefix = open_bucket(bucket), f"{prefix.strip('/')}/".lstrip("/")
    files = all_bytes = 0
    # First for the total: an entry that cannot be sent then fails before any upload.
    for _, sizes in _folders(directory):
        files, all_bytes = files + len(sizes), all_bytes + sum(sizes.values())
    counts, failed = {"files": files, "sent": 0, "there": 0, "bytes": 0}, list[str]()
    pending = deque[Future[tuple[bool, int]]]()

    def settle(most: int) -> None:
        """Wait until at most ``most`` files are pending."""
        while len(pending) > most:
            try:
                sent, size_bytes = pending.popleft().result()
            except SourceError as error:
                failed.append(str(error))
                continue
            counts["sent" if sent else "there"] += 1
            counts["bytes"] += size_bytes * sent
            done(size_bytes, all_bytes)

    with ThreadPoolExecutor(workers) as pool:
        try:
            for folder, sizes in _folders(directory):
                below = prefix + "".join(f"{part}/" for part in folder.relative_to(directory).parts)
                # Listing a folder bounds memory and saves a request per file.
                known = _objects(client, below)
                for name in sizes:
                    if len(failed) < _MOST_FAILURES:
                        path, key = folder / name, below + name
                        pending.append(pool.submit(_send, client, path, key, known.get(key)))
                        # Bounds the memory of queued files.
                        settle(_AHEAD * workers)
            settle(0)
        finally:
            pool.shutdown(cancel_futures=True)
    if failed:
        missing = files - counts["sent"] - counts["there"]
        raise SourceError(
            f"{missing:,} of {files:,} files are not in {url}; fix the errors and push again to send "
            f"the rest: {'; '.join(failed[:_MOST_FAILURES])}"
        )
    return counts


def _objects(client: Bucket, below: str) -> dict[str, tuple[int, str]]:
    try:
        pages = client.pages(below, folders=True)
        return {item.key: (item.size, item.version) for page in pages for item in page.objects}
    except ObjectError as error:
        raise SourceError(
            f"{client.name}/{below} cannot be listed: {error}; pushing needs AWS credentials that "
            "allow s3:ListBucket and s3:PutObject, and SUPER_S3_ENDPOINT_URL if the store is not AWS"
        ) from error


def _send(client: Bucket, path: Path, key: str, known: tuple[int, str] | None) -> tuple[bool, int]:
    """Send a file unless it was sent before. Return whether it was sent now, and its size."""
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False))
            size_bytes = file.tell()
            # The ETag is an MD5, except in buckets encrypted by KMS: there all is sent again.
            if known == (size_bytes, digest.hexdigest()):
                return False, size_bytes
            if size_bytes > _MOST_BYTES:
                raise SourceError(f"{path} is larger than {_MOST_BYTES:,} bytes")
            kind = mimetypes.guess_type(key)[0] or ""
            # The store refuses content that does not match this digest.
            client.put(key, file, content_type=kind, md5=base64.b64encode(digest.digest()).decode())
    except (OSError, ValueError, ObjectError) as error:
        raise SourceError(f"{path}: {error}") from error
    return True, size_bytes


def _folders(directory: Path) -> Iterator[tuple[Path, dict[str, int]]]:
    """Yield each folder with the sizes of its files by name, and reject entries that cannot be sent."""

    def refuse(error: OSError) -> NoReturn:
        raise SourceError(f"{error.filename} cannot be read: {error.strerror}") from error

    if not directory.is_dir():
        raise SourceNotFoundError(f"there is no directory {directory.absolute()}")
    for place, below, names in os.walk(directory, onerror=refuse):
        # os.walk descends in this order.
        below.sort()
        folder, sizes = Path(place), {}
        for name in sorted(names):
            try:
                known = (folder / name).stat()
            except OSError as error:
                refuse(error)
            if not stat.S_ISREG(known.st_mode):
                raise SourceError(f"{folder / name} is not a file, so its directory cannot be pushed")
            sizes[name] = known.st_size
        # os.walk does not follow links, and would leave their files out.
        for name in below:
            if (folder / name).is_symlink():
                raise SourceError(f"{folder / name} is a link to a directory: push its target separately")
        yield folder, sizes
