"""Present a demo in a terminal and as a page, with lines for a script."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from superdl.experiments.console import print_rows, say
from superdl.experiments.demo.measuring import PILLOW, SUPER
from superdl.experiments.machine import describe_hardware
from superdl.experiments.reporting.page import Table, draw_bars, height_of_bars, plot_of, render
from superdl.experiments.reporting.quantities import count, number, seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from rich.console import Console

    from superdl.experiments.demo.measuring import Epoch, Task

__all__ = ["Shown"]

_COLUMNS = ("first epoch", "second epoch", "fresh process")
_BAR = 44  # characters of the longest bar
_FEW = 1.5  # smaller factors are shown as a percentage

_NOTHING_TRAINED = "Nothing is trained: batches are read and dropped"
_WHYS = (
    "It starts its services, and decodes each image for the only time.",
    "Nothing is decoded.",
    "It starts its services again, and reads what is stored.",
)
_LINES = """\
from superdl import Recipe, SuperDataset, SuperLoader

dataset = SuperDataset(
    {directory},
    recipe=Recipe.image(resize={resize}, crop={crop}),  # decoded once, and kept
    transform=None,  # yours comes here, such as Augment({crop}); it is fresh in each epoch
)
loader = SuperLoader(dataset, batch_size={batch_size}, shuffle=True)  # with a GPU: device="cuda"
for epoch in range(3):
    for images, labels in loader:  # uint8 [{batch_size}, 3, {crop}, {crop}], int64 [{batch_size}]
        images = images.float() / 255
        ...  # your model's step
"""


class _Figure(NamedTuple):
    """A figure of an epoch, shown as a row."""

    title: str
    better: str
    of: Callable[[Epoch], float]


_RATE = _Figure("images/s", "more", lambda epoch: epoch.images / epoch.wall_s)
_CPU = _Figure("CPU, ms/image", "less", lambda epoch: 1e3 * epoch.cpu_s / epoch.images)
_DECODES = _Figure("images decoded", "less", lambda epoch: epoch.decodes)


@dataclass(frozen=True, slots=True)
class Shown:
    """The measurements: ``count`` images, described by ``read``; epochs by loader."""

    read: str
    count: int
    task: Task
    epochs: Mapping[str, Sequence[Epoch]]

    def lines(self) -> str:
        """Return the lines of a script that reads as SUPER did in the demo."""
        fields = asdict(self.task)
        return _LINES.format(**fields | {"directory": json.dumps(self.task.directory, ensure_ascii=False)})

    def print(self, console: Console, page: Path) -> None:
        """Print everything."""
        print_rows(console, ("", *_COLUMNS), self._rows(), title=_NOTHING_TRAINED)
        rates = self._bars(_RATE)
        width, longest = max(map(len, rates)), max(rates.values())
        say(console, "images/s")
        for name, rate in rates.items():
            say(console, f"  {name:{width}}  {'█' * max(1, round(_BAR * rate / longest))} {number(rate)}")
        say(console, "\n" + "\n".join(self._sentences()))
        say(console, f"\nwritten to {page}\n\nIn your script:\n\n{self.lines()}")

    def page(self) -> str:
        """Return the same as HTML."""
        drawings = [
            partial(
                draw_bars,
                title=f"{figure.title} ({figure.better} is better)",
                label=figure.title,
                bars=self._bars(figure),
            )
            for figure in (_RATE, _CPU)
        ]
        return render(
            "demo.html",
            title=f"{SUPER} beside {PILLOW}",
            subtitle=f"{self.read}, on {self.task.workers} cores of {describe_hardware()['cpu']}",
            table=Table(_NOTHING_TRAINED, ("", *_COLUMNS), self._rows()),
            plot=plot_of("Each bar is one epoch.", drawings, row_in=height_of_bars(2 * len(_COLUMNS))),
            sentences=list(self._sentences()),
            lines=self.lines(),
        )

    def _by_column(self) -> Iterator[tuple[str, dict[str, Epoch]]]:
        for column, each in zip(_COLUMNS, zip(*self.epochs.values(), strict=True), strict=True):
            yield column, dict(zip(self.epochs, each, strict=True))

    def _bars(self, figure: _Figure) -> dict[str, float]:
        return {
            f"{column}, {loader}": figure.of(epoch)
            for column, each in self._by_column()
            for loader, epoch in each.items()
        }

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (f"{figure.title}: {loader}", *(_written(figure.of(epoch)) for epoch in each))
            for figure in (_RATE, _CPU, _DECODES)
            for loader, each in self.epochs.items()
        ]

    def _sentences(self) -> Iterator[str]:
        for (column, each), why in zip(self._by_column(), _WHYS, strict=True):
            rate, cpu = (figure.of(each[SUPER]) / figure.of(each[PILLOW]) for figure in (_RATE, _CPU))
            speed = f"{SUPER} reads {_times(rate)} the images/s of {PILLOW} for {_times(cpu)} its CPU"
            yield f"{column.capitalize()}: {speed}. {why}"
        first, second, fresh = self.epochs[SUPER]
        yield (
            f"Its start (about {number(fresh.wall_s - second.wall_s, 2)} s) is in the first and the last "
            "column: the more images, the less it counts. CPU is that of all processes; imports are in none."
        )
        ten = {name: each[0].wall_s + 9 * each[1].wall_s for name, each in self.epochs.items()}
        yield "Ten such epochs: " + ", ".join(f"{seconds(s)} with {name}" for name, s in ten.items()) + "."
        if bad := self.count - first.images:
            yield (
                f"{count(bad, 'image')} cannot be decoded, and both skip it: superdl doctor "
                f"{shlex.quote(self.task.directory)} --all names such files."
            )


def _written(value: float) -> str:
    return count(value) if isinstance(value, int) else number(value)


def _times(ratio: float) -> str:
    return f"{number(ratio, 2)} times" if ratio >= _FEW else f"{number(100 * ratio, 2)}% of"
