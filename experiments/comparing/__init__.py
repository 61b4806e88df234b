"""`superdl compare`: arms of one spec, run interleaved on the same work, and what their figures say.

``arms`` says what is run and ``schedule`` in which order, ``comparison`` carries it out; ``measured`` reads
what runs left, ``figures`` and ``verdicts`` are the arithmetic, the rest is what people see. A run itself is
`experiments.run`'s, in a process of its own, which imports this: so nothing is imported here.
"""

from __future__ import annotations

__all__: list[str] = []
