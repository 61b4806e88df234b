"""Data for runs: generated and published image sets, the user's own sources, and uploads."""

from __future__ import annotations

from superdl.experiments.data.making import DIGITS_FORMAT, make_digits, make_set
from superdl.experiments.data.pushing import push
from superdl.experiments.data.sources import PreparedData, Source, prepare_data
from superdl.experiments.image_sets import MADE_SETS, PUBLISHED_SETS, MadeSet, default_directory

# Commands import this package, so it must import neither torch nor scikit-learn.
__all__ = [
    "DIGITS_FORMAT",
    "MADE_SETS",
    "PUBLISHED_SETS",
    "MadeSet",
    "PreparedData",
    "Source",
    "default_directory",
    "make_digits",
    "make_set",
    "prepare_data",
    "push",
]
