"""What is not repeated: credentials in addresses, secrets in others' logs, codes that a terminal obeys."""

from __future__ import annotations

import logging
import re

__all__ = [
    "SHOWN_CHARACTERS",
    "keep_secrets_out_of_logs",
    "shown",
    "shown_lines",
    "text_without_credentials",
    "without_credentials",
]

SHOWN_CHARACTERS = 1000
"""Others' words in a message are cut to so many: a name of an object has up to 1,024 bytes."""

_TALKATIVE = ("boto3", "botocore", "s3transfer", "urllib3")


def keep_secrets_out_of_logs() -> None:
    """Keep loggers at INFO or above that at DEBUG write whole requests, answers and secrets."""
    for name in _TALKATIVE:
        logger = logging.getLogger(name)
        if logger.level < logging.INFO:
            logger.setLevel(logging.INFO)


def without_credentials(address: str) -> str:
    """An address to be shown: without what stands before an ``@`` in its host or after a ``?``, such as a
    password or the signature of a presigned URL. Keys of objects may have both, and are cut too.
    """
    place, question, _ = address.partition("?")
    scheme, separator, rest = place.rpartition("://")
    shown = re.sub(r"^.*@", "***@", rest, flags=re.DOTALL)
    return f"{scheme}{separator}{shown}{question and '?***'}"


def text_without_credentials(text: str) -> str:
    """A text to be shown, others' words perhaps: without what stands before an ``@`` in URLs within it.

    Keys of objects and names of files may have one, and stay.
    """
    return re.sub(r"(?<!s3)(?<!gs)(?<!az)(?<!hf)(?<!file)://\S*@", "://***@", text)


def shown(text: str, most: int = SHOWN_CHARACTERS) -> str:
    """Make others' words printable in one line of at most ``most`` characters.

    What would steer a terminal, end a line or turn the direction of writing is escaped like in Python.
    """
    printable = _printable(text[: most + 1])
    return printable if len(printable) <= most else f"{printable[: most - 1]}…"


def shown_lines(text: str) -> str:
    """Make text printable that has lines of its own, such as a message to a person or a log's traceback."""
    return "\n".join(map(_printable, text.split("\n")))


def _printable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
