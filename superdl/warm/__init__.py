"""Fills a coordinator's cache ahead of the jobs that will read it: what ``superdl warm`` does.

``estimate`` says before what it will cost, ``filling`` drives an ordinary job that reads nothing but records'
headers (``headers``), ``allowance`` bounds it by room and money, ``report`` tells how far it is.
"""

from __future__ import annotations

from superdl.warm.estimate import Estimate, Standing, estimate_of, standing_of
from superdl.warm.filling import fill
from superdl.warm.report import Limits, WarmReport

__all__ = ["Estimate", "Limits", "Standing", "WarmReport", "estimate_of", "fill", "standing_of"]
