"""Which commit runs, where SUPER runs from a checkout of its own."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Checkout", "checkout_at"]

_ROOT = Path(__file__).resolve().parents[1]
_GIT_WAIT_S = 10.0


@dataclass(frozen=True, slots=True)
class Checkout:
    """A commit, and whether files that git tracks differ from it."""

    commit: str
    dirty: bool


def checkout_at(root: Path = _ROOT) -> Checkout | None:
    """The checkout whose root is ``root``; None where that is none, or git cannot say.

    A repository further up is somebody else's: that of a project with SUPER in its environment.
    """
    if not (root / ".git").exists():
        return None
    commit = _git(root, "rev-parse", "--verify", "HEAD")
    changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    return None if commit is None or changed is None else Checkout(commit.strip(), bool(changed.strip()))


def _git(root: Path, *words: str) -> str | None:
    # A hook of another repository may have set GIT_DIR; and looking shall write nothing.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "--no-optional-locks", "-C", str(root), *words]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_GIT_WAIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
