"""How coordinator and functions read objects that lie neither in S3 nor in a directory: one client for both.

Google's and Azure's buckets are :mod:`superdl.super_wire.clouds.buckets`'s. A client is asked for objects and
for pages of a listing. It tries a throttled request again, a bounded number of times, and says by
:class:`CloudError` what remains.
"""

from __future__ import annotations

from superdl.super_wire.clouds.base import ATTEMPTS, Cloud, CloudError, Fault, Page
from superdl.super_wire.errors import ConfigError

__all__ = ["ATTEMPTS", "Cloud", "CloudError", "Fault", "Page", "open_cloud"]


def open_cloud(bucket: str) -> Cloud:
    """The client of a bucket, such as ``gs://name``.

    Raises:
        ConfigError: no such bucket is known, or the package that reads it is not installed.
        CloudError: the environment does not say what the client needs.
    """
    if bucket.startswith(("gs://", "az://")):
        from superdl.super_wire.clouds.buckets import open_bucket

        return open_bucket(bucket)
    raise ConfigError(
        f"a bucket is s3://name, gs://name, az://container or file:///directory; not {bucket!r}"
    )
