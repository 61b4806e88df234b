"""Random augmentation as custom steps of recipes, for studies of where its CPU time is spent.

One module has one step; it imports NumPy, Pillow and the function's own package, as a function has no more. A
run allows them to what it starts itself; others import them only if ``SUPER_STEP_MODULES`` names them.
"""

from __future__ import annotations

__all__: list[str] = []
