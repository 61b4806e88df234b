"""Predict a run before it starts, and recommend the most useful change."""

from __future__ import annotations

from superdl.experiments.advising.advice import Advice, advise, print_advice

__all__ = ["Advice", "advise", "print_advice"]
