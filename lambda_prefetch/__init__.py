"""SUPER's function, which fetches, decodes and caches the samples of a prefetch request."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from superdl.lambda_prefetch.custom_steps import custom_step

__all__ = ["custom_step"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'superdl.lambda_prefetch' has no attribute {name!r}")
    # Imported on first use, because a worker, which only starts slots, does not need numpy.
    from superdl.lambda_prefetch.custom_steps import custom_step

    return custom_step
