"""What a stack may be called: its name becomes part of ids with narrower rules than CloudFormation's own."""

from __future__ import annotations

import argparse
import re

__all__ = ["stack_name"]

_MAX = 24
_FORM = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def stack_name(text: str) -> str:
    """Check a name, as argparse's ``type``.

    Raises:
        argparse.ArgumentTypeError: ElastiCache, or a host name, would not take it.
    """
    if len(text) > _MAX or not _FORM.fullmatch(text):
        msg = (
            f"a stack's name has at most {_MAX} lower-case letters, digits and single hyphens, beginning "
            f"with a letter, since ids of ElastiCache and a host name hold it; not {text!r}"
        )
        raise argparse.ArgumentTypeError(msg)
    return text
