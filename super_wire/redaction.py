"""What is not repeated: credentials in addresses, secrets in others' logs, codes that a terminal obeys."""

from __future__ import annotations

import logging
import re

__all__ = [
    "keep_secrets_out_of_logs",
    "shown",
    "shown_lines",
    "text_without_credentials",
    "without_credentials",
]

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


def shown(text: str) -> str:
    """Others' words as a terminal or a log may have them: what would steer a terminal, end a line or turn the
    direction of writing is escaped, as in a Python string.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shown_lines(text: str) -> str:
    """The same for what has lines of its own: a message to a person, a log's entry with its traceback."""
    return "\n".join(map(shown, text.split("\n")))
