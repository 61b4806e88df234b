"""The directory for temporary files, or an error that explains how to name one."""

from __future__ import annotations

import tempfile

from superdl.super_wire.errors import ConfigError


def temporary_directory() -> str:
    """Return the directory for temporary files: ``TMPDIR``, else the system's.

    Raises:
        ConfigError: no file can be written in any of them.
    """
    try:
        return tempfile.gettempdir()
    except FileNotFoundError as error:
        raise ConfigError(
            f"temporary files have no place ({error.strerror}): set TMPDIR to a directory that this user may "
            "write to and that has room"
        ) from error
