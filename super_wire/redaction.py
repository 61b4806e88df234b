"""Text for display: redacted, printable whatever its source, and with formatted counts."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# Limit for external text in a message: an object's name may be 1,024 bytes long.
SHOWN_CHARACTERS = 1000
_TALKATIVE = ("boto3", "botocore", "s3transfer", "urllib3")


def keep_secrets_out_of_logs() -> None:
    """Set loggers that log whole requests, responses or secrets at DEBUG to INFO or above."""
    for name in _TALKATIVE:
        logger = logging.getLogger(name)
        if logger.level < logging.INFO:
            logger.setLevel(logging.INFO)


def without_credentials(address: str) -> str:
    """Return an address for display, without the part before ``@`` in its host and the part after ``?``."""
    # This removes passwords and the signatures of presigned URLs. Keys with either character are cut too.
    base, question, _ = address.partition("?")
    scheme, separator, rest = base.rpartition("://")
    shown = re.sub(r"^.*@", "***@", rest, flags=re.DOTALL)
    return f"{scheme}{separator}{shown}{question and '?***'}"


def text_without_credentials(text: str) -> str:
    """Return a text of any origin for display, without the part before ``@`` in its URLs."""
    # Object keys and file names may contain @ and are kept.
    return re.sub(r"(?<!s3)(?<!gs)(?<!az)(?<!hf)(?<!file)://\S*@", "://***@", text)


def shown(text: str, most: int = SHOWN_CHARACTERS) -> str:
    """Make text of any origin printable in one line of at most ``most`` characters."""
    # Python's escapes for characters that control a terminal, end a line or reverse the text direction.
    printable = _printable(text[: most + 1])
    return printable if len(printable) <= most else f"{printable[: most - 1]}…"


def shown_lines(text: str) -> str:
    """Make text with several lines printable, such as a message or a traceback."""
    return "\n".join(map(_printable, text.split("\n")))


def _printable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def clean_text(text: str) -> str:
    """Return text that UTF-8 can encode. A lone surrogate from JSON becomes a question mark."""
    # External text ends up in tombstones, replies and logs, whose encoding would otherwise fail.
    return text if text.isascii() else text.encode(errors="replace").decode()


def counted(count: int, noun: str) -> str:
    """Format a count for people.

    >>> counted(1, "sample"), counted(1200, "sample")
    ('1 sample', '1,200 samples')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def sized(size: float) -> str:
    """Format a number of bytes for people.

    >>> sized(900), sized(3 * 2**19)
    ('900 bytes', '1.50 MiB')
    """
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 2**power:
            return f"{size / 2**power:,.2f} {unit}"
    return f"{size:,.0f} bytes"


def some_of(names: Sequence[str], most: int = 3) -> str:
    """Format the first few of many names for people.

    >>> some_of(["a", "b", "c", "d"], most=2)
    'a, b and 2 more'
    """
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more" if more > 0 else "")
