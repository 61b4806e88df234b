"""``is_hidden``: the check for a computer's own files among its user's, which are no samples."""

from __future__ import annotations

_FOLDER = b"__MACOSX"  # macOS's zips hold its AppleDouble files in it
_FILES = (b"Thumbs.db", b"desktop.ini")
_HERE = frozenset({b"", b".", b".."})


def is_hidden(key: bytes | str) -> bool:
    """Report whether a path in a source is hidden, inside a hidden folder, or a system's own file.

    A leading dot hides, as in ``.DS_Store``, ``._1.jpg`` and ``.ipynb_checkpoints``. Pass only the path below
    the root that the user names: the root's own folders may have any name.
    """
    path = key.encode("utf-8", "surrogateescape") if isinstance(key, str) else key
    if not (path[:1] == b"." or b"/." in path or _FOLDER in path or path.endswith(_FILES)):
        return False  # fast path for almost all
    parts = path.split(b"/")
    if parts[-1] in _FILES or _FOLDER in parts:
        return True
    return any(part[:1] == b"." and part not in _HERE for part in parts)
