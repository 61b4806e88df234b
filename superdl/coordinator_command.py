"""``superdl coordinator``: run a coordinator in the foreground. The work is :mod:`superdl.coordinator`'s."""

from __future__ import annotations

from superdl.coordinator.__main__ import add_arguments, run

__all__ = ["add_arguments", "run"]
