"""The data that experiments train on: sets that are drawn, published ones that are there, or sources that
users name; and sending sets to a bucket.

Imports fast (no torch, no scikit-learn), as the command line loads it. Reading images is left to
`experiments.loaders`.
"""

from __future__ import annotations

from superdl.experiments.data.making import DIGITS_FORMAT, make_digits, make_set
from superdl.experiments.data.pushing import push
from superdl.experiments.data.sources import PreparedData, Source, directories_of, prepare_data
from superdl.experiments.image_sets import MADE_SETS, PUBLISHED_SETS, MadeSet, default_directory

__all__ = [
    "DIGITS_FORMAT",
    "MADE_SETS",
    "PUBLISHED_SETS",
    "MadeSet",
    "PreparedData",
    "Source",
    "default_directory",
    "directories_of",
    "make_digits",
    "make_set",
    "prepare_data",
    "push",
]
