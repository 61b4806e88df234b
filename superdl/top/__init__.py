"""``superdl top``: ``looks`` polls a coordinator and computes rates, ``terminal`` shows them in a terminal,
``web`` as a page on loopback.
"""

from __future__ import annotations

from superdl.top.looks import Looks

__all__ = ["Looks"]
