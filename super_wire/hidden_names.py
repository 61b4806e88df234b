"""``is_hidden``: files that a computer keeps for itself beside those of its user, which are no samples."""

from __future__ import annotations

__all__ = ["is_hidden"]

_FOLDER = b"__MACOSX"  # macOS's zips hold its AppleDouble files in it
_FILES = (b"Thumbs.db", b"desktop.ini")
_HERE = frozenset({b"", b".", b".."})


def is_hidden(key: bytes | str) -> bool:
    """Whether a path below the root of a source is hidden, lies in a hidden folder, or is a system's own.

    A leading dot hides, as of ``.DS_Store``, ``._1.jpg`` and ``.ipynb_checkpoints``. Give only what is below
    the root that the user names: its own folders are theirs to name.
    """
    path = key.encode("utf-8", "surrogateescape") if isinstance(key, str) else key
    if not (path[:1] == b"." or b"/." in path or _FOLDER in path or path.endswith(_FILES)):
        return False  # as almost all are
    parts = path.split(b"/")
    if parts[-1] in _FILES or _FOLDER in parts:
        return True
    return any(part[:1] == b"." and part not in _HERE for part in parts)
