"""Fills a coordinator's cache or store ahead of the jobs that will read it: what ``superdl warm`` does.

``estimate`` says before what it will cost, ``filling`` has the coordinator do it, ``report`` tells how far it
is.
"""

from __future__ import annotations

from superdl.warm.estimate import Estimate, Standing, estimate_of, standing_of
from superdl.warm.filling import fill
from superdl.warm.report import Limits, WarmReport

__all__ = ["Estimate", "Limits", "Standing", "WarmReport", "estimate_of", "fill", "standing_of"]
