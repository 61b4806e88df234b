"""Objects that are too large for one PUT: sent in parts, which S3 joins once all are there."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import TYPE_CHECKING, BinaryIO

from superdl.super_wire.objects.base import Fault, ObjectError
from superdl.super_wire.objects.s3_account import query_of
from superdl.super_wire.objects.s3_answers import fields_of
from superdl.super_wire.objects.s3_route import Request

if TYPE_CHECKING:
    from collections.abc import Callable

    import urllib3

    _Send = Callable[[Request], urllib3.BaseHTTPResponse]

MOST_PUT_BYTES = 5 * 2**30
"""Maximum size of an object in one request."""

_PART_BYTES = 2**26


def put_in_parts(
    send: _Send, key: str, body: BinaryIO, content_type: str, *, part_bytes: int = _PART_BYTES
) -> None:
    """Write an object from a file, whole or not at all.

    Args:
        send: sends a request, and returns its answer with the body read into ``data``.
        key: the object's.
        body: read from its beginning.
        content_type: for HTTP readers.
        part_bytes: bytes in memory; S3 takes 10,000 parts, and all but the last have at least 5 MiB.

    Raises:
        ObjectError: S3 refuses; nothing is left there.
    """
    started = send(Request("POST", key, "uploads=", first=[f"content-type:{content_type}"]))
    upload = {"uploadId": fields_of(started.data).get("UploadId", "")}
    if not upload["uploadId"]:  # without it, parts could replace the object, and cleaning up remove it
        raise ObjectError(Fault.FAILED, "the object store takes no object in parts: it names no UploadId")
    try:
        _send_parts(send, key, body, upload, part_bytes)
    except BaseException:
        with suppress(ObjectError):
            send(Request("DELETE", key, query_of(upload)))
        raise


def _send_parts(send: _Send, key: str, body: BinaryIO, upload: dict[str, str], part_bytes: int) -> None:
    parts: list[str] = []
    body.seek(0)
    while part := body.read(part_bytes):
        query = query_of({"partNumber": str(len(parts) + 1), **upload})
        digest = hashlib.sha256(part).hexdigest()
        answer = send(Request("PUT", key, query, body=part, digest=digest))
        parts.append(answer.headers.get("ETag", ""))
    numbered = enumerate(parts, start=1)
    lines = (f"<Part><PartNumber>{n}</PartNumber><ETag>{etag}</ETag></Part>" for n, etag in numbered)
    document = f"<CompleteMultipartUpload>{''.join(lines)}</CompleteMultipartUpload>".encode()
    digest = hashlib.sha256(document).hexdigest()
    joined = send(Request("POST", key, query_of(upload), body=document, digest=digest))
    if "ETag" not in (fields := fields_of(joined.data.lstrip())):
        # S3 may fail after status 200, and sends white space while it works.
        raise ObjectError(Fault.UNAVAILABLE, f"S3 did not join its parts: {fields.get('Code', '')}")
