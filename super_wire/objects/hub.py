"""Datasets on the Hugging Face Hub: ``hf://datasets/OWNER/NAME``, usually with ``@COMMIT``."""

from __future__ import annotations

import json
import os
import re
import time
from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from superdl.super_wire.display import clean_text, shown
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.objects.base import Bucket, Fault, Listed, ObjectError, Page, Span, check_version
from superdl.super_wire.objects.web import checked_path, may_read, range_header, send, server_of
from superdl.super_wire.source_url import HUB_BUCKET

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from superdl.super_wire.objects.web import Response

_HUB = "https://huggingface.co"
# Limits for cached file locations. The Hub limits requests for them, but not requests for bytes.
_KEPT, _KEPT_S = 1024, 600.0
_PAGE_BYTES = 2**25  # a page of a listing has 1,000 files with some 300 bytes each
_COMMIT = re.compile("[0-9a-f]{40}")
_OID = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")
_NEXT = re.compile(r'<([^<>]{1,4096})>\s*;\s*rel="next"')
_SHOWN = 200


class _Location(NamedTuple):
    url: str
    version: str
    size: int
    until_s: float


def open_dataset(bucket: str) -> Dataset:
    """Return this process's client for a dataset. Raises the errors of ``open_bucket``."""
    endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or _HUB
    return _opened(bucket, os.getpid(), endpoint, os.environ.get("HF_TOKEN", "").strip())


@lru_cache(maxsize=16)
def _opened(bucket: str, _process: int, endpoint: str, token: str) -> Dataset:
    return Dataset(bucket, endpoint, token)


class Dataset(Bucket):
    """One revision of a dataset."""

    lists_folders = False  # listing each folder takes more requests

    def __init__(self, bucket: str, endpoint: str, token: str) -> None:
        match = HUB_BUCKET.fullmatch(bucket)
        if match is None:
            raise ConfigError(
                f"a dataset on the Hub must be hf://datasets/OWNER/NAME, not {bucket[:_SHOWN]!r}"
            )
        if not may_read(server_of(endpoint), None):
            raise ConfigError(
                f"HF_ENDPOINT must be https://host or a server on this machine, not {endpoint!r}"
            )
        if not re.fullmatch("[!-~]*", token):  # no header can contain it
            raise ConfigError("HF_TOKEN must consist of printable ASCII characters without spaces")
        self.name, self._name, self._revision = bucket, match[1], match[2] or "main"
        self._endpoint = endpoint
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._locations: dict[str, _Location] = {}

    def pinned(self) -> str:
        """Return the bucket at the current commit of its branch or tag."""
        commit = self._revision
        if not _COMMIT.fullmatch(commit):
            revision, _ = self._json(f"revision/{commit}?expand=sha")
            commit = str(revision.get("sha")) if isinstance(revision, dict) else ""
            if not _COMMIT.fullmatch(commit):
                raise ObjectError(
                    Fault.FAILED, f"the Hub returned no commit for the revision {self._revision}"
                )
        return f"hf://{self._name}@{commit}"

    def _fetch(self, key: str, version: str, span: Span | None, before: Callable[[int], None]) -> bytes:
        # The cached URL may have expired. In that case, look up the file again.
        for is_cached in (key in self._locations, False):
            location = self._locate(key)
            if version:
                check_version(location.version, version)
            bounded = span.within(location.size) if span is not None and span.begin < 0 else span
            is_hub = self._is_on_hub(location.url)
            # Send the token only to the Hub. URLs of the CDN are signed for an hour: never show them.
            headers, follow = (self._headers, self._is_on_hub) if is_hub else ({}, self._check_redirect)
            with send("GET", location.url, {**headers, **range_header(bounded)}, follow) as response:
                if response.good:
                    if response.size != location.size or (is_hub and response.etag() != location.version):
                        raise ObjectError(
                            Fault.CHANGED, "the file does not match the size or ETag that the Hub reported"
                        )
                    return response.content(bounded, before)
                self._locations.pop(key, None)
                if not is_cached:
                    raise self._failure(response)
        raise AssertionError  # the second round returns or raises

    def head(self, key: str) -> tuple[str, int]:
        """Return the version and size of a file."""
        return self._locate(key)[1:3]

    def pages(self, prefix: str, *, folders: bool = False) -> Iterator[Page]:  # noqa: ARG002
        """Yield all files below a prefix, whether or not ``folders`` is set."""
        path = f"tree/{self._revision}" + (f"/{checked_path(prefix[:-1])}" if prefix else "")
        query = "recursive=true"
        while query:
            entries, following = self._json(f"{path}?{query}")
            if not isinstance(entries, list) or following == query:
                raise ObjectError(Fault.FAILED, "the Hub's listing cannot be parsed")
            yield Page([file for entry in entries for file in _file_in(entry)])
            query = following

    def _locate(self, key: str) -> _Location:
        location = self._locations.get(key)
        if location is not None and location.until_s > time.monotonic():
            return location
        url = f"{self._endpoint}/{self._name}/resolve/{self._revision}/{checked_path(key)}"
        with send("HEAD", url, self._headers, self._is_on_hub) as response:
            if not (response.good or response.target):
                raise self._failure(response)
            linked = "X-Linked-" if response.target else ""  # for files at a CDN
            # The content's Git id, or SHA-256 for large files, does not change with commits elsewhere.
            version = response.etag(f"{linked}ETag")
            if not _OID.fullmatch(version):
                raise ObjectError(Fault.FAILED, f"the Hub returned the invalid version {version[:_SHOWN]!r}")
            size = response.number(f"{linked}Size" if linked else "Content-Length")
            location = _Location(response.target or response.url, version, size, time.monotonic() + _KEPT_S)
        self._check_redirect(location.url)
        if len(self._locations) >= _KEPT:
            self._locations.clear()
        self._locations[key] = location
        return location

    def _json(self, path: str) -> tuple[Any, str]:
        """Return a parsed response (``None`` if it is invalid) and the query for the next page, if any."""
        url = f"{self._endpoint}/api/{self._name}/{path}"
        with send("GET", url, self._headers, self._is_on_hub) as response:
            if not response.good:
                raise self._failure(response)
            content = response.read(_PAGE_BYTES + 1)
            following = _NEXT.search(response.headers.get("Link", ""))
        try:
            parsed = json.loads(content) if len(content) <= _PAGE_BYTES else None
        except (ValueError, RecursionError):
            parsed = None
        return parsed, urlsplit(following[1]).query if following else ""

    def _is_on_hub(self, url: str) -> bool:
        """Return whether a redirect stays on the Hub, which may receive the token."""
        return server_of(url) == server_of(self._endpoint)

    def _check_redirect(self, url: str) -> bool:
        """Allow a redirect away from the Hub, without the token. Raises ``ObjectError`` if it lacks TLS."""
        server = server_of(url)
        if server.startswith("https:") or (self._endpoint.startswith("http:") and may_read(server, None)):
            return True
        raise ObjectError(Fault.REFUSED, f"the Hub redirects to {server}, which does not use TLS")

    def _failure(self, response: Response) -> ObjectError:
        code, message = (response.headers.get(f"X-Error-{name}", "")[:_SHOWN] for name in ("Code", "Message"))
        remedy = f" ({code} {shown(message)})" if code else ""
        if code == "GatedRepo":
            remedy += (
                f"; accept the conditions at {self._endpoint}/{self._name}, and set HF_TOKEN to a token of "
                "that account"
            )
        elif response.status in {401, 403}:
            remedy += (
                "; if the dataset exists, it is private: set HF_TOKEN to a token of an account with access"
            )
        elif response.status == HTTPStatus.TOO_MANY_REQUESTS:
            remedy += (
                "; the Hub limits requests: set HF_TOKEN, and read Parquet files or tars instead of single "
                "files"
            )
        return response.failure(remedy)


def _file_in(entry: Any) -> Iterator[Listed]:
    try:
        if entry["type"] != "file":
            return
        path, version, size = entry["path"], (entry.get("lfs") or entry)["oid"], entry["size"]
    except (TypeError, KeyError, AttributeError):
        path = version = size = None
    texts = isinstance(path, str) and isinstance(version, str) and clean_text(path) == path != ""
    if not (texts and isinstance(size, int) and _OID.fullmatch(version)):
        raise ObjectError(Fault.FAILED, f"the Hub's listing cannot be parsed: {str(entry)[:_SHOWN]}")
    yield Listed(path, version, size)
