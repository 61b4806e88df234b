"""SUPER's function, which fetches and decodes the samples of a prefetch request and caches them."""

from __future__ import annotations

from superdl.lambda_prefetch.custom_steps import custom_step

__all__ = ["custom_step"]
