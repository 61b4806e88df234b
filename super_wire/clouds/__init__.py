"""How coordinator and functions read objects that lie neither in S3 nor in a directory: one client for both.

Google's and Azure's buckets are :mod:`superdl.super_wire.clouds.buckets`'s, datasets of the Hugging Face Hub
:mod:`superdl.super_wire.clouds.hub`'s, web servers :mod:`superdl.super_wire.clouds.web`'s. A client is asked
for objects and for pages of a listing. It tries a throttled request again, a bounded number of times, and
says by :class:`CloudError` what remains.
"""

from __future__ import annotations

from superdl.super_wire.clouds.base import ATTEMPTS, Cloud, CloudError, Fault, Page, fault_of
from superdl.super_wire.errors import ConfigError

__all__ = ["ATTEMPTS", "Cloud", "CloudError", "Fault", "Page", "fault_of", "open_cloud", "pinned_bucket"]


def open_cloud(bucket: str, hosts: tuple[str, ...] | None = None) -> Cloud:
    """The client of a bucket, such as ``gs://name``.

    Args:
        bucket: its name.
        hosts: the web servers that may be read, each as ``https://host``; ``None``: see
            :mod:`superdl.super_wire.clouds.web`.

    Raises:
        ConfigError: no such bucket is known, or the package that reads it is not installed.
        CloudError: the environment does not say what the client needs.
    """
    if bucket.startswith(("gs://", "az://")):
        from superdl.super_wire.clouds.buckets import open_bucket

        return open_bucket(bucket)
    if bucket.startswith("hf://"):
        from superdl.super_wire.clouds.hub import open_dataset

        return open_dataset(bucket)
    if bucket.startswith(("https://", "http://")):
        from superdl.super_wire.clouds.web import Site

        return Site(bucket, hosts)
    raise ConfigError(
        "a bucket is s3://name, gs://name, az://container, hf://datasets/OWNER/NAME, https://host or "
        f"file:///directory; not {bucket!r}"
    )


def pinned_bucket(bucket: str) -> str:
    """The same bucket as it is now: of a branch or tag of the Hub its commit; others are what they are.

    Raises:
        ConfigError: the environment holds what cannot be meant.
        CloudError: it cannot be found out.
    """
    if not bucket.startswith("hf://"):
        return bucket
    from superdl.super_wire.clouds.hub import open_dataset

    return open_dataset(bucket).pinned()
