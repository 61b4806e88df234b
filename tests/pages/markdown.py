"""Read the fenced blocks of Markdown pages, with the marks that say how to test them.

A comment before a block marks it: ``<!-- run -->`` runs in all tests, ``<!-- slow: REASON -->`` in slow ones,
``<!-- parsed: REASON -->`` never: its commands are parsed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])

_BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>run|slow|parsed)(?:: (?P<reason>[^\n]+))? -->\n)?"
    r"^```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    line: int
    mark: str | None
    reason: str | None
    language: str
    text: str

    @property
    def commands(self):
        """Each command after a ``$``, continued lines joined, with the lines of output below it."""
        commands = []
        for line in self.text.replace("\\\n", " ").splitlines():
            if line.startswith("$ "):
                commands.append((line[2:].strip(), []))
            elif commands:
                commands[-1][1].append(line)
        return commands


def blocks_of(page, section=None):
    """The fenced blocks of a page or of its section, in their order."""
    text = page.read_text(encoding="utf-8")
    if section is not None:
        text = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return [
        Block(text.count("\n", 0, match.start()) + 1, *match.group("mark", "reason", "language", "text"))
        for match in _BLOCK.finditer(text)
    ]


def commands_of(page):
    """The commands of a page's console blocks."""
    return [
        command for block in blocks_of(page) if block.language == "console" for command, _ in block.commands
    ]


def here(text, images):
    """A block's text for this machine: less to do, this checkout's last commit, ``images`` for buckets.

    ``images`` has ``train`` and ``val``.
    """
    text = re.sub(r"(?:(?:s3|hf)://[\w/-]+|/data/[\w/-]+)/(train|val)\b(?!\.)", rf"{images}/\1", text)
    text = text.replace("<this repository>", str(ROOT)).replace(", 90)", ", 2)")
    return text if torch.cuda.is_available() else text.replace('"cuda"', '"cpu"')
