"""Predict a run before it starts, and recommend the most useful change.

``probing`` measures the parts of a run, ``advice`` simulates it from these measurements.
"""

from __future__ import annotations

from superdl.experiments.advising.advice import Advice, print_advice
from superdl.experiments.advising.probing import advise

__all__ = ["Advice", "advise", "print_advice"]
