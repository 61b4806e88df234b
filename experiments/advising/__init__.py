"""What a run will be like before it is run, and the one change that helps it most.

``probing`` measures what its parts take, ``advice`` plays them in the simulator.
"""

from __future__ import annotations

from superdl.experiments.advising.advice import Advice, print_advice
from superdl.experiments.advising.probing import advise

__all__ = ["Advice", "advise", "print_advice"]
