"""Parsing of S3's responses: listing pages and errors."""

from __future__ import annotations

import html
import re
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import unquote_plus
from xml.parsers import expat

from superdl.super_wire.display import clean_text
from superdl.super_wire.objects.base import Fault, Listed, ObjectError, Page, fault_of

if TYPE_CHECKING:
    from collections.abc import Mapping

_CODES = dict.fromkeys(("NoSuchBucket", "NoSuchKey"), Fault.MISSING)
_CODES |= dict.fromkeys(
    ("RequestTimeout", "SlowDown", "Throttling", "ThrottlingException", "TooManyRequests"), Fault.UNAVAILABLE
)
_BAD_CREDENTIALS = frozenset(
    {"ExpiredToken", "ExpiredTokenException", "InvalidAccessKeyId", "InvalidToken", "RequestTimeTooSkewed"}
    | {"SignatureDoesNotMatch"}
)
_CODES |= dict.fromkeys(_BAD_CREDENTIALS, Fault.REFUSED)
_FULL = frozenset({"507", "EntityTooLarge", "InsufficientStorage", "QuotaExceeded", "XMinioStorageFull"})
_WRITING = {"PUT": "s3:PutObject", "DELETE": "s3:DeleteObject"}
_MOVED = frozenset({301, 307})
_SHOWN = 300
_LISTING = "ListBucketResult"
_ERROR_FIELD = re.compile("<(Code|Message|Region)>([^<]*)</")
# An object as S3 and most compatible servers write it. Outside comments, no other text looks like this.
_PLAIN = rb"[ -%'-;=-~]*"  # ASCII without < and &
_OBJECT = re.compile(
    rb"<Contents><Key>(%b)</Key><LastModified>(%b)</LastModified>" % (_PLAIN, _PLAIN)
    + rb"<ETag>(?:&quot;|\")?([0-9A-Za-z-]*)(?:&quot;|\")?</ETag><Size>([0-9]{1,18})</Size>"
    + rb"(?:<StorageClass>[A-Z_]*</StorageClass>)?</Contents>"
)
_TEXT_BYTES = 2**16  # longer than any text in a response, so expat does not split texts


def parse_page(content: bytes) -> tuple[Page, str]:
    """Parse a ListObjectsV2 response. Raises ``ObjectError`` if it is invalid.

    Returns a page and the continuation token, which is empty for the last page.
    """
    objects: list[Listed] = []
    # A regex takes a third of the parser's time. If a comment could hide objects, parse everything.
    remainder = content if b"<!" in content else _OBJECT.sub(b"", content)
    if b"<Contents" not in remainder:
        objects = [
            Listed(key.decode(), etag.decode(), int(size), modified.decode())
            for key, modified, etag, size in _OBJECT.findall(content)
        ]
        content = remainder
    folders: list[str] = []
    fields: dict[str, str] = {}
    texts: list[str] = []
    pop = fields.pop

    # Called at the end of each element, whose text is the last item of texts. No other Python function is
    # called, because a listing has seven elements for each key.
    def end(name: str) -> None:
        if name == "Contents":
            # Strip newlines too, because an empty element gets the text before it.
            etag, size = pop("ETag", "").strip('" \r\n\t'), int(pop("Size"))
            objects.append(Listed(pop("Key"), etag, size, pop("LastModified", "")))
        elif name == "CommonPrefixes":
            folders.append(pop("Prefix"))
        else:
            fields[name] = texts.pop() if texts else ""

    parser = expat.ParserCreate()
    parser.buffer_text, parser.buffer_size = True, _TEXT_BYTES
    parser.StartElementHandler = dict[str, object]().setdefault  # splits the texts at start tags
    parser.EndElementHandler = end
    parser.CharacterDataHandler = texts.append
    parser.StartDoctypeDeclHandler = _refuse_entities
    try:
        parser.Parse(content, True)  # positional in expat
        fields[_LISTING]
    except (expat.ExpatError, KeyError, ValueError) as error:
        raise ObjectError(
            Fault.FAILED,
            f"the object store's listing cannot be parsed ({type(error).__name__}: {error}). It begins with "
            f"{content[:_SHOWN]!r}",
        ) from error
    if fields.get("EncodingType") == "url":
        for index, item in enumerate(objects):
            if "%" in item.key or "+" in item.key:
                objects[index] = item._replace(key=_decoded(item.key))
        folders = list(map(_decoded, folders))
    token = fields.get("NextContinuationToken", "") if fields.get("IsTruncated") == "true" else None
    if token == "":
        raise ObjectError(
            Fault.FAILED, "the object store truncated its listing without returning a continuation token"
        )
    return Page(objects, folders), token or ""


def _error_fields(content: bytes) -> dict[str, str]:
    text = content.decode(errors="replace")
    return {name: html.unescape(value) for name, value in _ERROR_FIELD.findall(text)}


def _refuse_entities(*_: object) -> None:
    raise ValueError("a document type is declared")


def _decoded(name: str) -> str:
    return unquote_plus(name, errors="surrogateescape")


def region_in(status: int, headers: Mapping[str, str], content: bytes) -> str:
    """Return the bucket's region if an error response contains it, otherwise an empty string."""
    if status not in _MOVED | {400}:  # 400 is the response to HEAD
        return ""
    region = headers.get("x-amz-bucket-region") or _error_fields(content).get("Region", "")
    return region if re.fullmatch("[a-z0-9-]{1,40}", region) else ""


def refusal(status: int, content: bytes, bucket: str, region: str, method: str) -> ObjectError:
    """Return the error for a failed S3 request, with S3's message and a remedy."""
    fields = _error_fields(content)
    code, message = (clean_text(fields.get(name, ""))[:_SHOWN] for name in ("Code", "Message"))
    fault = _CODES.get(code) or fault_of(status)
    reason = f"S3 answered {status}{code and f' {code}'}{message and f': {message}'}".rstrip(".")
    if status == HTTPStatus.PRECONDITION_FAILED:  # S3's message is about preconditions, which users never set
        reason = "S3 has a different version (ETag) of the object"
    location = f"the region {region}" if region else "another region"
    remedy = f"; the bucket is in {location}: set AWS_REGION" if status in _MOVED else ""
    if code in _BAD_CREDENTIALS:
        remedy = "; renew the AWS credentials, or use those of a role"
    elif code == "InvalidObjectState":
        remedy = (
            "; the object is archived (Glacier, Deep Archive): restore it, or remove it from the key list"
        )
    elif fault is Fault.REFUSED and method in _WRITING:
        remedy = (
            f"; allow {_WRITING[method]} on arn:aws:s3:::{bucket}/* (and kms:GenerateDataKey on the key if "
            "the bucket is encrypted with one), and check that the bucket policy does not deny it"
        )
    elif fault is Fault.REFUSED:
        remedy = (
            f"; allow s3:ListBucket on arn:aws:s3:::{bucket} and s3:GetObject on arn:aws:s3:::{bucket}/* "
            "(and kms:Decrypt on the key if objects are encrypted with one), and check that the bucket "
            "policy does not deny them; for a Requester Pays bucket, set SUPER_S3_REQUESTER_PAYS=1"
        )
    elif fault is Fault.MISSING:
        remedy = "; check the name, and SUPER_S3_ENDPOINT_URL if the store is not AWS"
    return ObjectError(fault, reason + remedy, full=bool({code, str(status)} & _FULL))
