"""SUPER's function: fetch, decode and cache the samples of a prefetch request."""

from __future__ import annotations

from superdl.lambda_prefetch.custom_steps import custom_step

__all__ = ["custom_step"]
