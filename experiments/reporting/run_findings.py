"""What a run's figures mean, in sentences that follow from them by plain rules.

All rules are here, so that two runs with equal figures are described alike.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from superdl.experiments.reporting.quantities import count, number, percent, seconds, share, usd

if TYPE_CHECKING:
    from collections.abc import Sequence

    from superdl.experiments.reporting.run_files import Pass, RunFiles

__all__ = ["STALL_CAUSES", "Explanation", "causes_of", "findings"]

_NO_LIMIT = 0.05
"""Waiting for less of a pass than this does not matter."""
_LIMIT = 0.2
"""Waiting for more of it than this limits the pass."""


class Explanation(NamedTuple):
    """Why steps stall, as a clause, and what helps against it."""

    meaning: str
    remedy: str = ""


STALL_CAUSES = {
    "cold_start": Explanation(
        "functions, or the job itself, were starting", "a longer run; superdl warm; provisioned concurrency"
    ),
    "throttle": Explanation(
        "executors took fewer requests at once than they have functions", "a higher concurrency quota"
    ),
    "source": Explanation(
        "images came from the source more slowly than they were decoded",
        "the bucket in the same region; more functions",
    ),
    "store": Explanation(
        "records were on their way from the store", "a store that readers see; a faster disk; more functions"
    ),
    "decode": Explanation("decoding took most of the time", "more functions, or a second executor"),
    "retry": Explanation(
        "samples had failed and waited for another attempt", "superdl stats --batch tells why they failed"
    ),
    "cache_memory": Explanation("the cache had no room, or had lost samples", "more memory for the cache"),
    "spending": Explanation("a cap on spending held functions back", "a higher cap"),
    "late_planning": Explanation(
        "functions were idle, and the samples had not been asked for",
        "nothing of yours: a job that speeds up is caught up with after a few batches",
    ),
    "cache_transfer": Explanation(
        "reading from the cache, or handing over, took longer than the step",
        "more workers; loader super-threads; a nearer cache",
    ),
    "store_read": Explanation(
        "reading from the store's disk took longer than the step", "more workers; a faster disk"
    ),
    "loader_start": Explanation("its workers or threads were starting", "persistent workers"),
    "loading": Explanation("the loader, which does not tell what it did, was late"),
    "unknown": Explanation("the coordinator does not know why"),
}
"""The causes of `docs/runs.md`, in its order."""


def causes_of(passes: Sequence[Pass]) -> list[str]:
    """The causes of some passes' stalls, in the order in which docs have them."""
    there = {cause for one in passes for cause in one.stalls}
    return [cause for cause in STALL_CAUSES if cause in there] + sorted(there - STALL_CAUSES.keys())


def findings(run: RunFiles) -> list[tuple[str, str]]:
    """The run in a few sentences, each with its subject first."""
    trained = [_accuracy(run), _throughput(run), _waiting(run), _first_batch(run)] if run.trained else []
    return [_outcome(run), *trained, _cost(run)]


def _outcome(run: RunFiles) -> tuple[str, str]:
    epochs = _epochs(run)
    if not run.facts:
        return "Its report cannot be read:", "only its other files tell of it."
    took = f"{epochs} in {seconds(run.facts.get('wall_s'))}"
    if run.status == "finished":
        return "It finished:", f"{took}."
    if run.status == "running":
        return "It goes on, or was killed:", f"{took} so far."
    how = "It was interrupted" if run.status == "interrupted" else "It failed"
    return how, f"after {took}: {run.facts.get('reason') or 'no reason is known'}."


def _epochs(run: RunFiles) -> str:
    """How far the run came, and from where, if it went on from another's checkpoint."""
    planned = run.spec.get("epochs")
    done = [one.epoch + 1 for one in run.trained]
    if done and done[0] > 1:
        return f"epoch{f's {done[0]} to' if len(done) > 1 else ''} {done[-1]} of {planned}"
    return count(len(done), "epoch") if len(done) == planned else f"{len(done)} of {planned} epochs"


def _accuracy(run: RunFiles) -> tuple[str, str]:
    validated = [one for one in run.passes if one.split == "val"]
    if not validated:
        return (
            "Accuracy:",
            "not known, since no validation came to its end (data.val, training.validate_every).",
        )
    end, best = validated[-1], max(validated, key=lambda one: one.figures["accuracy"])
    images = count(end.figures["samples"], "validation image")
    said = (
        f"after epoch {end.epoch + 1} the model was right for {percent(end.figures['accuracy'])} of {images}."
    )
    top5 = end.figures.get("top5_accuracy")
    if top5 is not None:
        said += f" Top-5: {percent(top5)}."
    if best.epoch != end.epoch:
        said += f" Best was epoch {best.epoch + 1} with {percent(best.figures['accuracy'])}."
    return "Accuracy:", said


def _throughput(run: RunFiles) -> tuple[str, str]:
    trained = run.trained
    said = f"{_images_per_s(trained)} while training"
    if len(trained) > 1:
        said += (
            f": {_images_per_s(trained[:1])} in {_first_epoch(run)}, {_images_per_s(trained[1:])} after it"
        )
    return "Throughput:", f"{said}."


def _images_per_s(passes: Sequence[Pass]) -> str:
    return f"{number(share(_sum(passes, 'samples'), _sum(passes, 'wall_s')))} images/s"


def _sum(passes: Sequence[Pass], name: str) -> float:
    return sum(one.figures[name] or 0.0 for one in passes)


def _waiting(run: RunFiles) -> tuple[str, str]:
    first, later = run.trained[:1], run.trained[1:]
    said = f"{_why(first)} of {_first_epoch(run)}"
    return "Waiting for data:", f"{said}; {_why(later)} of the epochs after it." if later else f"{said}."


def _first_epoch(run: RunFiles) -> str:
    """The first that this run did: one that went on from another's checkpoint begins with a later one."""
    epoch = run.trained[0].epoch
    return f"epoch {epoch + 1}" if epoch else "the first epoch"


def _why(passes: Sequence[Pass]) -> str:
    """What the waiting of some passes means, and what most of it was for, where that is known."""
    part = share(_sum(passes, "wait_s"), _sum(passes, "wall_s")) or 0.0
    if part < _NO_LIMIT:
        return f"data does not limit it: {percent(part)}"
    causes: Counter[str] = Counter()
    for one in passes:
        causes.update(one.stalls)
    limits = "data limits it" if part >= _LIMIT else "data slows it a little"
    for cause, wait_s in causes.most_common(1):
        meaning = STALL_CAUSES[cause].meaning if cause in STALL_CAUSES else f"of {cause}"
        limits += f", most of all since {meaning} ({seconds(wait_s)})"
    return f"{limits}: {percent(part)}"


def _first_batch(run: RunFiles) -> tuple[str, str]:
    wait_s = run.trained[0].figures["first_batch_s"]
    said = f"{seconds(wait_s)} after {_first_epoch(run)} began"
    from_start_s = run.facts.get("first_batch_s")
    if from_start_s is not None:
        said += f", {seconds(from_start_s)} after the run did, which opened all that it needs in between"
    return "First batch:", f"{said}."


def _cost(run: RunFiles) -> tuple[str, str]:
    bill = run.facts.get("bill")
    if not bill:
        return "Cost:", "not known, since the report does not say it."
    absent = ", ".join(line["name"] for line in bill["lines"] if line["usd"] is None)
    without = f" Not in it, since no price is known: {absent}." if absent else ""
    if not bill["usd"]:
        return "Cost:", f"nothing of what has a price here was used.{without}"
    parts = ", ".join(f"{line['name']} {usd(line['usd'])}" for line in bill["lines"] if line["usd"])
    per_million = bill["usd_per_million_images"]
    each = "" if per_million is None else f" ({usd(per_million)} for a million training images)"
    return "Cost:", f"{usd(bill['usd'])}{each}: {parts}.{without}"
