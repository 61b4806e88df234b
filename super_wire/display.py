"""Text for display: redacted and printable text, counts and sizes."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# Limit for external text in a message. An object's name may have 1,024 bytes.
SHOWN_CHARACTERS = 1000
_LOG_SECRETS = ("boto3", "botocore", "s3transfer", "urllib3")


def keep_secrets_out_of_logs() -> None:
    """Raise the level of loggers that log secrets at DEBUG to INFO."""
    for name in _LOG_SECRETS:
        logger = logging.getLogger(name)
        if logger.level < logging.INFO:
            logger.setLevel(logging.INFO)


def without_credentials(address: str) -> str:
    """Return an address for display, without the parts before ``@`` and after ``?``.

    This removes passwords and the signatures of presigned URLs, but also cuts keys with these characters.
    """
    base, question, _ = address.partition("?")
    scheme, separator, rest = base.rpartition("://")
    shown = re.sub(r"^.*@", "***@", rest, flags=re.DOTALL)
    return f"{scheme}{separator}{shown}{question and '?***'}"


def text_without_credentials(text: str) -> str:
    """Return a text for display, without the part before ``@`` in URLs. Keys and file names are kept."""
    return re.sub(r"(?<!s3)(?<!gs)(?<!az)(?<!hf)(?<!file)://\S*@", "://***@", text)


def shown(text: str, most: int = SHOWN_CHARACTERS) -> str:
    """Return a printable line of at most ``most`` characters.

    Characters that control a terminal, end a line or reverse the text direction are escaped.
    """
    printable = _printable(text[: most + 1])
    return printable if len(printable) <= most else f"{printable[: most - 1]}…"


def shown_lines(text: str) -> str:
    """Return a text, such as a message or a traceback, as printable lines."""
    return "\n".join(map(_printable, text.split("\n")))


def _printable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def clean_text(text: str) -> str:
    """Replace lone surrogates, which JSON allows but UTF-8 cannot encode, with question marks."""
    # External text ends up in tombstones, replies and logs, which could not be encoded otherwise.
    return text if text.isascii() else text.encode(errors="replace").decode()


def counted(count: int, noun: str) -> str:
    """Format a count with its noun.

    >>> counted(1, "sample"), counted(1200, "sample")
    ('1 sample', '1,200 samples')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def sized(size: float) -> str:
    """Format a number of bytes.

    >>> sized(900), sized(3 * 2**19)
    ('900 bytes', '1.50 MiB')
    """
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 2**power:
            return f"{size / 2**power:,.2f} {unit}"
    return f"{size:,.0f} bytes"


def some_of(names: Sequence[str], most: int = 3) -> str:
    """Format the first few of many names.

    >>> some_of(["a", "b", "c", "d"], most=2)
    'a, b and 2 more'
    """
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more" if more > 0 else "")
