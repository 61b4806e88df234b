"""Describe a run's figures in sentences, by fixed rules: runs with equal figures are described alike."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from superdl.experiments.reporting.quantities import count, number, percent, seconds, share, usd
from superdl.super_wire.waits import UNKNOWN, WAITS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from superdl.experiments.reporting.run_files import Pass, RunFiles

# Waiting for a smaller share of a pass does not matter; waiting for a larger one limits the pass.
_NO_LIMIT, _LIMIT = 0.05, 0.2


class Tile(NamedTuple):
    """A figure at the top of a page: its value, title and a note."""

    value: str
    title: str
    note: str


def tiles(run: RunFiles) -> list[Tile]:
    """Return tiles for throughput, waiting and cost, where known."""
    bill, first, later = run.facts.get("bill"), run.trained[:1], run.trained[1:]
    run_tiles = []
    if first:
        of = "of epochs after the first" if later else f"of {_first_epoch(run)}"
        before = f"first epoch: {_rate(first)}" if later else "training images"
        run_tiles.append(Tile(_rate(later or first), f"images/s {of}", before))
        before = f"first epoch: {percent(_waiting_share(first))}" if later else "training time"
        run_tiles.append(Tile(percent(_waiting_share(later or first)), f"waiting for data, {of}", before))
    if bill:
        run_tiles.append(Tile(usd(bill["usd"]), "cost of the run", _about_cost(bill)))
    return run_tiles


def findings(run: RunFiles) -> list[tuple[str, str]]:
    """Describe the run in (subject, text) pairs: what to change, then what happened."""
    if not run.trained:
        return [_outcome(run)]
    change = ("What to change:", _change(run))
    return [change, _outcome(run), ("Accuracy:", _accuracy(run)), _waiting(run), _first_batch(run)]


def _outcome(run: RunFiles) -> tuple[str, str]:
    if not run.facts:
        return "Unknown:", "report.json cannot be read; the other files have what is shown."
    took = _epochs(run)
    if "wall_s" in run.facts:
        took += f" in {seconds(run.facts['wall_s'])}"
    if run.status == "finished":
        return "Finished", f"{took}."
    if run.status == "running":
        return "Running, or killed:", f"{took} so far."
    return run.status.capitalize(), f"after {took}: {run.facts.get('reason') or 'the reason is not known'}."


def _epochs(run: RunFiles) -> str:
    # A resumed run names its first epoch.
    planned = run.spec.get("epochs")
    done = [train_pass.epoch + 1 for train_pass in run.trained]
    if done and done[0] > 1:
        return f"epoch{f's {done[0]} to' if len(done) > 1 else ''} {done[-1]} of {planned}"
    return count(len(done), "epoch") if planned in {None, len(done)} else f"{len(done)} of {planned} epochs"


def _accuracy(run: RunFiles) -> str:
    validated = [epoch_pass for epoch_pass in run.passes if epoch_pass.split == "val"]
    if not validated:
        return "not measured, because no validation finished (data.val, training.validate_every)."
    end, best = validated[-1], max(validated, key=lambda epoch_pass: epoch_pass.figures["accuracy"])
    images = count(end.figures["samples"], "validation image")
    accuracy, top5 = percent(end.figures["accuracy"]), end.figures.get("top5_accuracy")
    sentence = f"after epoch {end.epoch + 1} the model was right for {accuracy} of {images}."
    if top5 is not None:
        sentence += f" Top-5: {percent(top5)}."
    if best.epoch != end.epoch:
        sentence += f" Best was epoch {best.epoch + 1} with {percent(best.figures['accuracy'])}."
    return sentence


def _rate(passes: Sequence[Pass]) -> str:
    return number(share(_sum(passes, "samples"), _sum(passes, "wall_s")))


def _sum(passes: Sequence[Pass], name: str) -> float:
    return sum(epoch_pass.figures[name] or 0.0 for epoch_pass in passes)


def _waiting(run: RunFiles) -> tuple[str, str]:
    first, later = run.trained[:1], run.trained[1:]
    sentence = f"{percent(_waiting_share(first))} of the time in {_first_epoch(run)}{_why(first)}"
    if later:
        sentence += f", {percent(_waiting_share(later))} in later epochs{_why(later)}"
    return "Waiting for data:", f"{sentence}."


def _first_epoch(run: RunFiles) -> str:
    epoch = run.trained[0].epoch
    return f"epoch {epoch + 1}" if epoch else "the first epoch"


def _waiting_share(passes: Sequence[Pass]) -> float:
    return share(_sum(passes, "wait_s"), _sum(passes, "wall_s")) or 0.0


def _main_cause(passes: Sequence[Pass]) -> tuple[str, float] | None:
    """Return the main cause of waiting and its seconds; None if negligible or unknown."""
    waits: Counter[str] = Counter()
    for epoch_pass in passes:
        waits.update(epoch_pass.stalls)
    return next(iter(waits.most_common(1)), None) if _waiting_share(passes) >= _NO_LIMIT else None


def _why(passes: Sequence[Pass]) -> str:
    cause = _main_cause(passes)
    return f", mostly because {WAITS[cause[0]].meaning} ({seconds(cause[1])})" if cause else ""


def _change(run: RunFiles) -> str:
    # Later epochs count most, so they come first.
    first, later = run.trained[:1], run.trained[1:]
    for passes, where, are in ((later, "Later epochs", "are"), (first, "The first epoch", "is")):
        waited = _waiting_share(passes)
        if waited >= _NO_LIMIT:
            cause = _main_cause(passes)
            remedy = WAITS[cause[0] if cause else UNKNOWN].remedy
            degree = "could be a little faster" if waited < _LIMIT else f"{are} limited by data"
            return f"{where} {degree}: try {remedy}."
    return "nothing. Data does not limit training."


def _first_batch(run: RunFiles) -> tuple[str, str]:
    sentence = f"{seconds(run.trained[0].figures['first_batch_s'])} after {_first_epoch(run)} began"
    from_start_s = run.facts.get("first_batch_s")
    if from_start_s is not None:
        sentence += f", {seconds(from_start_s)} after the start of the run, which also opens model and data"
    return "First batch:", f"{sentence}."


def _about_cost(bill: Mapping[str, Any]) -> str:
    absent = [line["name"] for line in bill["lines"] if line["usd"] is None]
    per_million = bill["usd_per_million_images"] if bill["usd"] else None
    parts = [] if per_million is None else [f"{usd(per_million)} for a million training images"]
    parts += [f"without {', '.join(absent)}: no price known"] if absent else []
    return "; ".join(parts) or "no priced services"
