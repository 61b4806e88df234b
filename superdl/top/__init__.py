"""What ``superdl top`` does: ``looks`` asks a coordinator again and again and makes rates of what it tells,
``terminal`` shows them in a terminal, ``web`` as a page on loopback.
"""

from __future__ import annotations

from superdl.top.looks import Looks

__all__ = ["Looks"]
