"""Fills a coordinator's cache ahead of the jobs that will read it: what ``superdl warm`` does.

``estimate`` says before what it will cost, ``filling`` drives an ordinary job that reads nothing but records'
headers (``headers``), ``allowance`` bounds it by room and money, ``recount`` looks again, ``show``
tells how far it is.
"""

from __future__ import annotations

from experiments.warming.estimate import Estimate, Standing, estimate_of
from experiments.warming.filling import fill
from experiments.warming.report import Limits, WarmReport
from experiments.warming.standing import standing_of

__all__ = ["Estimate", "Limits", "Standing", "WarmReport", "estimate_of", "fill", "standing_of"]
