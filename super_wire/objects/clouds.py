"""Google and Azure buckets, read with obstore, which the ``clouds`` extra installs."""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from superdl.super_wire.errors import ConfigError
from superdl.super_wire.objects.base import (
    ATTEMPTS,
    Bucket,
    Fault,
    Listed,
    ObjectError,
    Page,
    Span,
    check_version,
    fault_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


_CLIENT = {"connect_timeout": "5s", "read_timeout": "20s", "timeout": "300s"}
_RETRIES = {
    "max_retries": ATTEMPTS - 1,
    "retry_timeout": timedelta(seconds=30),
    "backoff": {
        "init_backoff": timedelta(milliseconds=200),
        "max_backoff": timedelta(seconds=5),
        "base": 2,
    },
}
_ENDPOINTS = {
    "gs": ("STORAGE_EMULATOR_HOST", "GOOGLE_BASE_URL"),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
_REMEDIES = {
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS, or attach a service account to the machine, with permission "
    "to list and read the bucket (roles/storage.objectViewer); for public buckets, set "
    "GOOGLE_SKIP_SIGNATURE=true",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY (or AZURE_STORAGE_SAS_TOKEN), or "
    "attach an identity to the machine, with permission to list and read the container (Storage Blob "
    "Data Reader); for public containers, set AZURE_SKIP_SIGNATURE=true",
}
# Variables of the clouds' own tools, which set endpoints and credentials.
_PREFIXES = ("GOOGLE_", "AZURE_", "STORAGE_EMULATOR_HOST")
_STATUS = re.compile(r"status code: (\d{3})")
# obstore's messages about broken connections
_DISCONNECTED = ("HTTP error: ", "error decoding response body")
_SHOWN = 300


def open_cloud(bucket: str) -> _Cloud:
    """Return the client for ``gs://name`` or ``az://container``. Raises the errors of ``open_bucket``."""
    settings = frozenset(item for item in os.environ.items() if item[0].startswith(_PREFIXES))
    return _cached_client(bucket, os.getpid(), settings)


@lru_cache(maxsize=16)
def _cached_client(bucket: str, _process: int, _settings: frozenset[tuple[str, str]]) -> _Cloud:
    return _Cloud(bucket)


class _Cloud(Bucket):
    def __init__(self, bucket: str) -> None:
        self.name = bucket
        self._scheme, _, name = bucket.partition("://")
        try:
            import obstore
            from obstore.store import AzureStore, GCSStore
        except ImportError as error:
            raise ConfigError(
                f"reading {bucket} requires obstore, which is not installed here ({error}): run pip install "
                "'superdl[clouds]' where the coordinator and functions run"
            ) from error
        endpoint = next(filter(None, map(os.environ.get, _ENDPOINTS[self._scheme])), "")
        options = {
            "client_options": {**_CLIENT, "allow_http": endpoint.startswith("http://")},
            "retry_config": _RETRIES,
        }
        self._obstore = obstore
        self._has_suffix_ranges = self._scheme == "gs"  # Azure cannot return the last n bytes
        with self._failures():
            if self._scheme == "az":
                self._store: Any = AzureStore(name, **options)
            elif os.environ.get("STORAGE_EMULATOR_HOST"):  # like Google's own clients
                emulated = {"base_url": endpoint, "skip_signature": True}
                self._store = GCSStore(name, config=emulated, **options)
            else:
                self._store = GCSStore(name, **options)

    def _fetch(self, key: str, version: str, span: Span | None, before: Callable[[int], None]) -> bytes:
        if span is not None and span.begin < 0 and not self._has_suffix_ranges:
            span = span.within(self.head(key)[1])
        options: dict[str, Any] = {"if_match": f'"{version}"'} if version else {}
        if span is not None:
            options["range"] = {"suffix": -span.begin} if span.begin < 0 else tuple(span)
        with self._failures():
            response = self._obstore.get(self._store, key, options=options)
            current, (first, last) = _version(response.meta), response.range
        if version:
            check_version(current, version)  # some servers ignore If-Match
        before(last - first)
        with self._failures():
            data: bytes = response.bytes().to_bytes()
        return data

    def head(self, key: str) -> tuple[str, int]:
        with self._failures():
            meta = self._obstore.head(self._store, key)
        return _version(meta), int(meta["size"])

    def pages(self, prefix: str, *, folders: bool = False) -> Iterator[Page]:
        with self._failures():
            if folders:
                listing = self._obstore.list_with_delimiter(self._store, prefix=prefix or None)
                names = [f"{folder}/" for folder in listing["common_prefixes"]]
                yield Page(list(map(_listed, listing["objects"])), names)
                return
            for page in self._obstore.list(self._store, prefix=prefix or None, chunk_size=1000):
                yield Page(list(map(_listed, page)))

    @contextmanager
    def _failures(self) -> Iterator[None]:
        from obstore.exceptions import BaseError

        try:
            yield
        except (BaseError, OSError, ValueError) as error:  # ValueError: an invalid key
            message = str(error).partition("\n")[0][:_SHOWN]
            status = int(match[1]) if (match := _STATUS.search(str(error))) else 0
            fault = Fault.MISSING if isinstance(error, FileNotFoundError) else fault_of(status)
            if not status and any(words in str(error) for words in _DISCONNECTED):
                fault = Fault.UNAVAILABLE
            # Without a status, the credentials may be missing: obstore then requests them from a server
            # that only the cloud's own machines can reach.
            remedy = "" if status and fault is not Fault.REFUSED else f"; {_REMEDIES[self._scheme]}"
            raise ObjectError(fault, f"{message}{remedy}") from error


def _listed(meta: Any) -> Listed:
    return Listed(meta["path"], _version(meta), int(meta["size"]))


def _version(meta: Any) -> str:
    return str(meta["e_tag"] or "").removeprefix("W/").strip('"')
