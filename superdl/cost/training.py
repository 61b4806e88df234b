"""What the same training costs on other machines: price ratio times time ratio, by what two runs have left.

More machines make an hour dearer and a step shorter; whether training gets cheaper is the product of the two.
What loading alone costs is :mod:`superdl.cost.model`'s.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rich.console import Console

__all__ = ["StepTime", "TrainingCosts", "print_costs", "step_time", "to_mapping"]

_FIRST_STEPS = 10  # of a run of one epoch, which are not counted
_SAME = 0.01  # batches differ by less in what counts as the same work


@dataclass(frozen=True, slots=True)
class StepTime:
    """The training steps of a run once it was under way, and what its machines cost.

    ``busy_share`` is the part of a step in which the device computed, ``gpu_percent`` what the driver says of
    that, None without a GPU. ``samples`` are those of a step, on one rank.
    """

    name: str
    steps: int
    samples: float
    step_s: float
    wait_s: float
    busy_share: float
    gpu_percent: float | None
    usd_per_hour: float


@dataclass(frozen=True, slots=True)
class TrainingCosts:
    """Two runs of the same training.

    Raises:
        ConfigError: their steps are not the same work.
    """

    before: StepTime
    after: StepTime

    def __post_init__(self) -> None:
        """Refuse steps of other sizes."""
        if not math.isclose(self.before.samples, self.after.samples, rel_tol=_SAME):
            raise ConfigError(
                f"the steps of {self.before.name} have {self.before.samples:.0f} images and those of "
                f"{self.after.name} {self.after.samples:.0f}: runs of one batch size can be compared"
            )

    @property
    def price_ratio(self) -> float:
        """What an hour costs after, for each dollar before."""
        return self.after.usd_per_hour / self.before.usd_per_hour

    @property
    def time_ratio(self) -> float:
        """How long a step takes after, for each second before."""
        return self.after.step_s / self.before.step_s

    @property
    def cost_ratio(self) -> float:
        """What training costs after, for each dollar before."""
        return self.price_ratio * self.time_ratio


def step_time(directory: Path, usd_per_hour: float | None = None) -> StepTime:
    """Read a run's steps, without its first epoch or, if it has one only, without its first ten steps.

    Args:
        directory: the run's.
        usd_per_hour: of all its machines; None: by ``cost`` of its spec and the price table in its manifest.

    Raises:
        ConfigError: there are no such steps, or it is not told what the machines cost.
    """
    try:
        manifest = json.loads((directory / "manifest.json").read_text(encoding="utf-8"))
        lines = (directory / "steps.jsonl").read_text(encoding="utf-8").splitlines()
        steps = [step for step in map(json.loads, lines) if step["split"] == "train"]
        several = any(step["epoch"] > 0 for step in steps)
        counted = [step for step in steps if step["epoch"] > 0] if several else steps[_FIRST_STEPS:]
        if not counted:
            raise ConfigError(
                f"{directory} has {len(steps)} training steps, of which none is left once the first "
                f"{_FIRST_STEPS} are not counted"
            )
        busy = [step["gpu_percent"] for step in counted if step.get("gpu_percent") is not None]
        total_s = math.fsum(step["total_s"] for step in counted)
        return StepTime(
            name=str(manifest["name"]),
            steps=len(counted),
            samples=fmean(step["samples"] for step in counted),
            step_s=total_s / len(counted),
            wait_s=fmean(step["wait_s"] for step in counted),
            busy_share=math.fsum(step["compute_s"] for step in counted) / total_s,
            gpu_percent=fmean(busy) if busy else None,
            usd_per_hour=_usd_per_hour(manifest) if usd_per_hour is None else usd_per_hour,
        )
    except OSError as error:
        raise ConfigError(f"{directory} is no directory of a run: {error}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{directory} is not a run as this version leaves it: {error!r}") from error


def _usd_per_hour(manifest: Mapping[str, Any]) -> float:
    cost, prices = manifest["spec"]["cost"], manifest["prices"]
    tables = {"machine": "machines", "data_machine": "machines", "cache_node": "cache_nodes"}
    hours = [
        cost[f"{kind}s"] * float(prices[table][cost[kind]]["hour"])
        for kind, table in tables.items()
        if cost[kind] is not None
    ]
    if not hours:
        raise ConfigError(
            f"the spec of {manifest['name']} names no machine (cost.machine), so nobody knows what an hour "
            "costs: give --hourly"
        )
    return math.fsum(hours)


def to_mapping(costs: TrainingCosts) -> dict[str, Any]:
    """As JSON has it."""
    ratios = {name: getattr(costs, name) for name in ("price_ratio", "time_ratio", "cost_ratio")}
    return asdict(costs) | ratios


def print_costs(costs: TrainingCosts, console: Console) -> None:
    """As people see it."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in ("", "run", "steps", "images", "ms a step", "waiting", "computing", "GPU", "USD/hour"):
        table.add_column(title, justify="left" if title in ("", "run") else "right")
    for place, one in (("before", costs.before), ("after", costs.after)):
        table.add_row(
            place,
            one.name,
            f"{one.steps:,}",
            f"{one.samples:,.0f}",
            f"{1000 * one.step_s:,.1f}",
            f"{one.wait_s / one.step_s:.0%}",
            f"{one.busy_share:.0%}",
            "" if one.gpu_percent is None else f"{one.gpu_percent:.0f}%",
            f"{one.usd_per_hour:.3f}",
        )
    console.print(table)
    console.print(
        f"price ratio {costs.price_ratio:.2f} x time ratio {costs.time_ratio:.2f}: training costs "
        f"{costs.cost_ratio:.2f} of what it did before, at {1 / costs.time_ratio:.2f} times the speed",
        soft_wrap=True,
    )
