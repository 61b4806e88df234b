"""What a listing may take: which directories of this machine, and how many samples.

Clients name sources and key lists; which files of its own machine a coordinator reads for them is its
operator's choice. What functions may read is theirs, see :mod:`superdl.lambda_prefetch.settings`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from superdl.super_wire.errors import ConfigError, SourceError, SourceForbiddenError

__all__ = ["Allowed", "parse_roots"]

_DESCRIPTORS = Path("/proc/self/fd")


@dataclass(frozen=True, slots=True)
class Allowed:
    """Bounds of one coordinator.

    ``roots`` are the absolute real paths of the directories that ``file://`` sources and key lists must lie
    in; ``None``: they may lie anywhere. ``samples`` is the most that one source may have. ``own_functions``
    says that functions run here, as this coordinator's user.
    """

    roots: tuple[str, ...] | None = None
    samples: int = 2**40
    own_functions: bool = True

    @property
    def link_roots(self) -> tuple[str, ...]:
        """Where links may lead that leave their source: to the roots, and anywhere where all is this user's
        own: the sources, which nobody else names, and the functions, which may read no more than he.
        """
        if self.roots is not None:
            return self.roots
        return ("/",) if self.own_functions else ()

    def may_lead(self, real: str, source: str) -> bool:
        """Whether a link in a source's directory may lead to a path; both are real paths."""
        return any(_is_within(real, root) for root in (source, *self.link_roots))

    def check_path(self, real: str, what: str) -> None:
        """See that a path may be read.

        Args:
            real: absolute, with all symbolic links resolved.
            what: the source or key list, as the client named it.

        Raises:
            SourceForbiddenError: it may not; neither whether it exists is told, nor what may be read.
        """
        if self.roots is None or any(_is_within(real, root) for root in self.roots):
            return
        if self.roots:
            why = "it lies in none of the directories of its operator's file_roots (SUPER_FILE_ROOTS)"
        else:
            why = (
                "others can reach it, so its operator must allow directories by file_roots (SUPER_FILE_ROOTS)"
            )
        raise SourceForbiddenError(f"this coordinator may not read {what}: {why}")

    def check_open_file(self, descriptor: int, what: str) -> None:
        """The same for a file that is open: whoever moves things about meanwhile gains nothing by it."""
        if self.roots is not None and _DESCRIPTORS.exists():  # Linux alone can tell
            self.check_path(str((_DESCRIPTORS / str(descriptor)).readlink()), what)

    def check_count(self, samples: int) -> None:
        """Raise ``SourceError`` if there are more samples than a source may have."""
        if samples > self.samples:
            raise SourceError(
                f"it has more than {self.samples:,} samples, which is all that this coordinator's "
                "catalog_max_samples allows: raise it if there is memory for that (some 50 bytes a sample)"
            )


def _is_within(real: str, root: str) -> bool:
    return real == root or real.startswith(f"{root.rstrip('/')}/")


def parse_roots(text: str) -> tuple[str, ...]:
    """The directories in a text that separates them as PATH does, as real paths.

    Raises:
        ConfigError: one of them is relative.
    """
    roots = [root for root in text.split(os.pathsep) if root]
    for root in roots:
        if not root.startswith("/"):
            raise ConfigError(
                f"file_roots are absolute directories, separated by {os.pathsep!r}; not {root!r}"
            )
    return tuple(map(os.path.realpath, roots))
