"""Which SUPER this is; functions tell it with every answer, so that a mixed deployment shows."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version

from superdl.super_wire.recipe import PIPELINE_VERSION

__all__ = ["installed_version"]


@cache
def installed_version() -> str:
    """The installed version of SUPER.

    A bundle built without package metadata says ``0+unpackaged`` and the pipeline version, which is what
    decides about pixels.
    """
    try:
        return version("superdl")
    except PackageNotFoundError:
        return f"0+unpackaged.p{PIPELINE_VERSION}"
