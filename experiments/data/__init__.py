"""The data that experiments train on: built-in sets written to disk, or sources the user names.

Imports fast (no torch, no scikit-learn), as the command line loads it. Reading images is left to
`experiments.loaders`.
"""

from __future__ import annotations

from experiments.data.digits import DIGITS_FORMAT, make_digits
from experiments.data.sources import PreparedData, Source, prepare_data

__all__ = ["DIGITS_FORMAT", "PreparedData", "Source", "make_digits", "prepare_data"]
