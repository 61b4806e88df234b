"""Parsing of responses from S3: pages of a listing, and refusals."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote_plus
from xml.parsers import expat

from superdl.super_wire.objects.base import Fault, Listed, ObjectError, Page, fault_of
from superdl.super_wire.redaction import clean_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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
# An object as written by S3 and most compatible servers, which is unambiguous outside comments.
_PLAIN = rb"[ -%'-;=-~]*"  # ASCII without < and &
_OBJECT = re.compile(
    rb"<Contents><Key>(%b)</Key><LastModified>(%b)</LastModified>" % (_PLAIN, _PLAIN)
    + rb"<ETag>(?:&quot;|\")?([0-9A-Za-z-]*)(?:&quot;|\")?</ETag><Size>([0-9]{1,18})</Size>"
    + rb"(?:<StorageClass>[A-Z_]*</StorageClass>)?</Contents>"
)
_TEXT_BYTES = 2**16  # longer than any text in a response, so that each text arrives in one piece


class ListPage(NamedTuple):
    """One page of a listing, and the token for the next one, which is empty after the last."""

    page: Page
    token: str


def parse_page(content: bytes) -> ListPage:
    """Parse the response to a ListObjectsV2 request. Raises ``ObjectError`` if it is invalid."""
    objects: list[Listed] = []
    # A regex takes a third of a parser's time. If a comment may hide objects, parse everything.
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

    def end(name: str) -> None:
        if name == "Contents":
            # Strip newlines too, because an empty element gets the text before it.
            etag, size = pop("ETag", "").strip('" \r\n\t'), int(pop("Size"))
            objects.append(Listed(pop("Key"), etag, size, pop("LastModified", "")))
        elif name == "CommonPrefixes":
            folders.append(pop("Prefix"))
        else:
            fields[name] = texts.pop() if texts else ""

    try:
        _parse(content, end, texts)
        fields[_LISTING]
    except (expat.ExpatError, KeyError, ValueError) as error:
        why = f"the object store's listing cannot be parsed ({type(error).__name__}: {error})"
        raise ObjectError(Fault.FAILED, f"{why}, which begins with {content[:_SHOWN]!r}") from error
    if fields.get("EncodingType") == "url":
        for index, item in enumerate(objects):
            if "%" in item.key or "+" in item.key:
                objects[index] = item._replace(key=_decoded(item.key))
        folders = list(map(_decoded, folders))
    token = fields.get("NextContinuationToken", "") if fields.get("IsTruncated") == "true" else None
    if token == "":
        raise ObjectError(
            Fault.FAILED, "the object store truncated its listing, but returned no continuation token"
        )
    return ListPage(Page(objects, folders), token or "")


def fields_of(content: bytes) -> dict[str, str]:
    """Return the text of each element in a response, by name, or an empty dict if it is not XML."""
    fields: dict[str, str] = {}
    texts: list[str] = []

    def end(name: str) -> None:
        fields[name] = texts.pop() if texts else ""

    try:
        _parse(content, end, texts)
    except (expat.ExpatError, ValueError):
        return {}
    return fields


def _parse(content: bytes, end: Callable[[str], None], texts: list[str]) -> None:
    """Call ``end`` with an element's name at its end tag. The last item of ``texts`` is its content."""
    # Call only one Python function per element, because a listing has seven elements per key.
    parser = expat.ParserCreate()
    parser.buffer_text, parser.buffer_size = True, _TEXT_BYTES
    parser.StartElementHandler = dict[str, object]().setdefault  # splits the texts at start tags
    parser.EndElementHandler = end
    parser.CharacterDataHandler = texts.append
    parser.StartDoctypeDeclHandler = _refuse_entities
    parser.Parse(content, True)  # positional in expat


def _refuse_entities(*_: object) -> None:
    raise ValueError("a document type is declared")


def _decoded(name: str) -> str:
    return unquote_plus(name, errors="surrogateescape")


def region_in(status: int, headers: Mapping[str, str], content: bytes) -> str:
    """Return the bucket's region if a refusal reports it, or an empty string."""
    if status not in _MOVED | {400}:  # 400 answers HEAD
        return ""
    region = headers.get("x-amz-bucket-region") or fields_of(content).get("Region", "")
    return region if re.fullmatch("[a-z0-9-]{1,40}", region) else ""


def refusal(status: int, content: bytes, bucket: str, region: str, method: str) -> ObjectError:
    """Return the error for a failed S3 request, with the message from S3 and what to do."""
    fields = fields_of(content)
    code, message = (clean_text(fields.get(name, ""))[:_SHOWN] for name in ("Code", "Message"))
    fault = _CODES.get(code) or fault_of(status)
    words = f"S3 answered {status}{code and f' {code}'}{message and f': {message}'}".rstrip(".")
    if (
        fault is Fault.CHANGED and status == HTTPStatus.PRECONDITION_FAILED
    ):  # S3's message mentions preconditions, which users never set
        words = "S3 has a different version (ETag) of the object"
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
    return ObjectError(fault, words + remedy, full=bool({code, str(status)} & _FULL))
