"""What SUPER costs, measured beside what users would otherwise pick. Not in the wheel; ``superdl bench``
runs it.

A benchmark is one module here with ``add_arguments`` and ``measure``, and one row in
:data:`benchmarks.command.BENCHMARKS`. It compares in one run, on the same images, and says in its report what
was counted and how.
"""

from __future__ import annotations

__all__: list[str] = []
