"""Draws all pictures of a made set into a directory: in this process where they are few, else in several.

Each process is a Python of its own (`experiments.data.drawing_process`), not a fork: whoever asks may hold
threads, a GPU or a channel, and need not guard its main module. They end with this one. Making the directory
whole is left to `experiments.data.making`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from superdl.experiments.data.made_sets import MadeSet
from superdl.experiments.data.pictures import label_of, picture_file
from superdl.sampler.embedded.host import usable_cores
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Drawing", "draw", "draw_share", "processes_for"]

_WORTH_A_PROCESS = 20_000_000  # pixels: starting a process takes as long as drawing about so many
_TELL_EVERY = 50  # pictures
_LAST_WORDS = 400


@dataclass(frozen=True, slots=True)
class Drawing:
    """What is to be drawn where."""

    made: MadeSet
    seed: int
    counts: Mapping[str, int]
    root: str

    def to_json(self) -> str:
        """Write it for another process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Drawing:
        """Read what `to_json` wrote."""
        values: dict[str, Any] = json.loads(text)
        made = values.pop("made")
        made["sizes"] = tuple(tuple(size) for size in made["sizes"])
        return cls(made=MadeSet(**made), **values)


def processes_for(drawing: Drawing) -> int:
    """How many processes are worth it: not more than there are cores."""
    width, height = drawing.made.sizes[0]
    pixels = sum(drawing.counts.values()) * width * height
    return max(1, min(usable_cores(), pixels // _WORTH_A_PROCESS))


def draw(drawing: Drawing, root: Path, processes: int, drawn: Callable[[int], None]) -> None:
    """Draw all pictures below ``root``; ``drawn`` is told how many more are done.

    Raises:
        ConfigError: they cannot be written, or a process ended before it was done.

    """
    for split in drawing.counts:
        for label in range(drawing.made.classes):
            (root / split / drawing.made.class_name(label)).mkdir(parents=True)
    if processes == 1:
        draw_share(drawing, 0, 1, drawn)
    else:
        _draw_in_processes(drawing, processes, drawn)


def draw_share(drawing: Drawing, share: int, shares: int, drawn: Callable[[int], None]) -> None:
    """Draw one of several equal shares of the pictures."""
    made, untold = drawing.made, 0
    for split, count in drawing.counts.items():
        digits = max(5, len(str(count - 1)))
        for index in range(share, count, shares):
            folder = f"{drawing.root}/{split}/{made.class_name(label_of(made, index))}"
            content = picture_file(made, drawing.seed, split, index)
            with open(f"{folder}/{index:0{digits}d}.{made.extension}", "wb") as file:  # noqa: PTH123  # a Path for each costs
                file.write(content)
            untold += 1
            if untold == _TELL_EVERY:
                drawn(untold)
                untold = 0
    drawn(untold)


def _draw_in_processes(drawing: Drawing, processes: int, drawn: Callable[[int], None]) -> None:
    with ExitStack() as stack:
        reading, writing = os.pipe()  # one pipe for all: short lines are written whole
        lines = stack.enter_context(os.fdopen(reading, "r", encoding="ascii"))
        try:
            children = [_start(drawing, share, processes, writing, stack) for share in range(processes)]
        finally:
            os.close(writing)
        done = 0
        for line in lines:  # until all have closed their end
            done += int(line)
            drawn(int(line))
        for child, words in children:
            if child.wait() != 0:
                raise ConfigError(
                    f"cannot write the images of {drawing.made.name} to {Path(drawing.root).parent}: "
                    f"{_last_words(words, child.returncode)}; name a directory that you may write, with room"
                )
        if done != sum(drawing.counts.values()):  # a promise of this module and its processes
            raise RuntimeError(f"{done} images were drawn, not {sum(drawing.counts.values())}")


def _start(
    drawing: Drawing, share: int, shares: int, writing: int, stack: ExitStack
) -> tuple[subprocess.Popen[bytes], BinaryIO]:
    """Start a process that is ended with ``stack``; also what its errors are written to."""
    words = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115  # the stack closes it
    child = subprocess.Popen(
        (sys.executable, "-P", "-m", "superdl.experiments.data.drawing_process", str(share), str(shares)),
        stdin=subprocess.PIPE,
        stdout=writing,
        stderr=words,
        process_group=0,  # an interrupt from the keyboard is for the parent, which ends it
    )
    stack.callback(_end, child)
    if child.stdin is not None:  # it is, by the argument above
        with suppress(BrokenPipeError), child.stdin:  # one that ended at once has told why
            child.stdin.write(drawing.to_json().encode())
    return child, words


def _end(child: subprocess.Popen[bytes]) -> None:
    child.kill()  # does nothing to one that has ended
    child.wait()


def _last_words(words: BinaryIO, code: int) -> str:
    words.seek(0)
    told = words.read().decode(errors="replace").strip().splitlines()
    return told[-1][-_LAST_WORDS:] if told else f"a drawing process ended with code {code} and no word"
