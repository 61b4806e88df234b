"""`superdl compare`: arms of one spec, run interleaved on the same work, and what their figures say.

``arms`` says what runs and in which order, ``running`` carries it out round by round; ``measured`` reads what
runs left, ``figures`` is the arithmetic and its words, ``comparison`` and ``show`` what people get. A process
of a run imports this package: so nothing is imported here.
"""

from __future__ import annotations

__all__: list[str] = []
