"""What the loaders that decode by themselves read: a source's samples, listed as SUPER's coordinator does it.

So classes, labels and key order are those of SUPER, whichever loader is compared with it. Decoding is left to
`experiments.loaders.pixels`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from superdl.super_wire.errors import ConfigError, SourceNotFoundError

if TYPE_CHECKING:
    from superdl.experiments.data import Source

__all__ = ["Samples", "list_samples"]

_SIZED = 64  # objects whose size is asked for, where the listing does not tell it


class Samples:
    """The samples of a source in key order; it pickles, and each process that reads has its own connections.

    ``bucket`` and ``keys`` are those of sample ids: ``s3://name`` with full object keys, or ``file://`` and
    the directory's absolute real path with paths below it. ``labels`` are places in ``classes``.
    ``fingerprint`` is of all that the listing told, sizes and modification times of files with it.
    """

    def __init__(
        self, bucket: str, keys: list[str], labels: list[int], classes: tuple[str, ...], fingerprint: bytes
    ) -> None:
        self.bucket = bucket
        self.keys = keys
        self.labels = labels
        self.classes = classes
        self.fingerprint = fingerprint
        # Any: boto3 makes its clients' methods at run time. The process that made it is beside it.
        self._made: tuple[int, Any] | None = None

    def __len__(self) -> int:
        """How many there are."""
        return len(self.keys)

    def __getstate__(self) -> dict[str, Any]:
        """All but the connections."""
        return {**self.__dict__, "_made": None}

    def read(self, index: int) -> bytes:
        """The bytes of one object.

        Raises:
            SourceNotFoundError: it is gone.
            SourceForbiddenError: it may not be read.
            SourceError: the store did not give it.

        """
        if self.bucket.startswith("s3://"):
            return self._read_object(self.keys[index])
        path = f"{self.bucket.removeprefix('file://')}/{self.keys[index]}"
        try:
            with open(path, "rb", buffering=0) as file:  # noqa: PTH123  # half the time of a Path
                return file.read()
        except FileNotFoundError as error:
            raise SourceNotFoundError(f"{path} is gone since it was listed; start the run again") from error

    def _read_object(self, key: str) -> bytes:
        from superdl.coordinator.catalog.s3_client import s3_failures

        with s3_failures(f"{self.bucket}/{key}"):
            answer = self._client().get_object(Bucket=self.bucket.removeprefix("s3://"), Key=key)
            with answer["Body"] as body:
                content: bytes = body.read()
        return content

    def size_bytes(self) -> int:
        """Bytes of all objects; of a bucket, about, from a few of them."""
        if not self.bucket.startswith("s3://"):
            root = Path(self.bucket.removeprefix("file://"))
            return sum((root / key).stat().st_size for key in self.keys)
        some = self.keys[:: max(len(self.keys) // _SIZED, 1)]
        name = self.bucket.removeprefix("s3://")
        sizes = [int(self._client().head_object(Bucket=name, Key=key)["ContentLength"]) for key in some]
        return sum(sizes) * len(self.keys) // len(sizes)

    def _client(self) -> Any:
        """This process's client, made when it is first needed."""
        if self._made is None or self._made[0] != os.getpid():
            from superdl.coordinator.catalog.s3_client import make_s3_client

            self._made = os.getpid(), make_s3_client()
        return self._made[1]


def list_samples(source: Source, kind: str) -> Samples:
    """List a source by its class folders or its key list.

    Args:
        source: what to list.
        kind: the loader that asks, for messages.

    Raises:
        SourceError: it cannot be listed; as `coordinator.catalog.lister.list_source` says.
        ConfigError: the labels of its key list are no class names.

    """
    from superdl.coordinator.catalog.lister import list_source

    catalog = list_source(source.url, _expanded(source.key_list))
    if not catalog.classes:
        raise ConfigError(
            f"the labels in {source.key_list} are numbers, and loader.kind {kind} takes class names alone; "
            "set loader.kind=super"
        )
    keys = [key.decode() for key in catalog.keys]
    return Samples(catalog.bucket, keys, catalog.labels.tolist(), catalog.classes, catalog.fingerprint)


def _expanded(key_list: str | None) -> str | None:
    if key_list is None or "://" in key_list:
        return key_list
    return str(Path(key_list).expanduser())
