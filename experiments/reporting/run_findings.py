"""What a run's figures mean, in sentences that follow from them by plain rules.

All rules are here, so that two runs with equal figures are described alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from superdl.experiments.reporting.quantities import count, percent, points_of, rate, seconds, share, usd

if TYPE_CHECKING:
    from collections.abc import Sequence

    from superdl.experiments.reporting.run_files import Pass, RunFiles

__all__ = ["STALL_CAUSES", "Explanation", "findings", "stalls_of", "step_times_by_epoch"]

_NO_LIMIT = 0.05
"""Waiting for less of a pass than this does not matter."""
_LIMIT = 0.2
"""Waiting for more of it than this limits the pass."""
_WORK = ("samples_produced", "invocations", "fetch_s", "decode_s", "push_s")

_EPOCHS = 6
"""So many epochs are shown beside each other: of more, the first and the last."""


class Explanation(NamedTuple):
    """Why steps stall, as a clause, and what helps against it."""

    meaning: str
    remedy: str = ""


STALL_CAUSES = {
    "cold_start": Explanation(
        "functions, or the job itself, were starting",
        "a longer run; superdl warm; provisioned concurrency",
    ),
    "throttle": Explanation(
        "executors took fewer requests at once than they have functions", "a higher concurrency quota"
    ),
    "source": Explanation(
        "images came from the source more slowly than they were decoded",
        "the bucket in the same region; more functions",
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
    "loader_start": Explanation("its workers or threads were starting", "persistent workers"),
    "loading": Explanation("the loader, which does not tell what it did, was late"),
    "unknown": Explanation("the coordinator does not know why"),
}
"""The causes of `docs/runs.md`, in its order."""


def stalls_of(one: Pass) -> dict[str, float]:
    """Seconds of waiting by cause, the longest first; empty where nobody told."""
    causes = (one.figures.get("stalls") or {}).get("causes") or {}
    waits = {name: float(total["wait_s"]) for name, total in causes.items()}
    return dict(sorted(waits.items(), key=lambda item: -item[1]))


def step_times_by_epoch(run: RunFiles) -> dict[int, dict[int, float]]:
    """Mean step times by the step at which they were printed, of the first epochs and the last."""
    found: dict[int, dict[int, float]] = {}
    for one in run.known.get("step_times") or ():
        found.setdefault(one["epoch"], {})[one["step"]] = one["mean_s"]
    shown = sorted(found)
    if len(shown) > _EPOCHS:
        shown = shown[: _EPOCHS // 2] + shown[-_EPOCHS // 2 :]
    return {epoch: found[epoch] for epoch in shown}


def findings(run: RunFiles) -> list[tuple[str, str]]:
    """The run in a few sentences, each with its subject first."""
    points = [_outcome(run)]
    if run.trained:
        points += [_accuracy(run), _throughput(run), *_step_times(run), _waiting(run), _first_batch(run)]
    return [*points, _cost(run), *_bad_samples(run)]


def _outcome(run: RunFiles) -> tuple[str, str]:
    epochs = _epochs(run)
    if run.report is None and run.status != "running":
        return "Its report is missing:", (
            f"its manifest says {run.status}, so there was one. What follows is added up from the steps "
            f"that it wrote, of {epochs}."
        )
    if run.report is None:
        return "It left no report:", (
            f"its manifest says {run.status}, so it goes on, or was killed. What follows is added up from "
            f"the steps that it wrote, of {epochs} and what came after."
            if run.trained
            else f"its manifest says {run.status}, so it goes on, or was killed, and no step was written."
        )
    took = f"{epochs} in {seconds(run.report['wall_s'])}"
    if run.status == "finished":
        return "It finished:", f"{took}."
    how = "It was interrupted" if run.status == "interrupted" else "It failed"
    return how, f"after {took}: {run.report.get('reason') or 'no reason is known'}."


def _epochs(run: RunFiles) -> str:
    """How far the run came, and from where, if it went on from another's checkpoint."""
    planned = run.spec.get("epochs")
    cut = {one.epoch for one in run.passes if not one.complete}
    done = [one.epoch + 1 for one in run.trained if one.epoch not in cut]
    if done and done[0] > 1:
        return f"epoch{f's {done[0]} to' if len(done) > 1 else ''} {done[-1]} of {planned}"
    return count(len(done), "epoch") if len(done) == planned else f"{len(done)} of {planned} epochs"


def _accuracy(run: RunFiles) -> tuple[str, str]:
    last = _alike(run.trained)[-1]
    begun = [one for one in run.passes if one.split == "val"]
    validated = _alike([one for one in begun if one.complete])
    if not validated:
        if begun:
            why = "No validation came to its end"
        elif run.has_validation_data:
            why = "No epoch was validated" + (" (training.validate_every)" * (run.status == "finished"))
        else:
            why = "There was no validation data (data.val)"
        return "Accuracy:", (
            f"{_right(last)} of the training images in {_when(run, last)}. {why}, so nothing is known of "
            "images that it was not trained on."
        )
    best = max(validated, key=lambda one: one.figures["accuracy"])
    said = (
        f"after epoch {validated[-1].epoch + 1} the model was right for {_right(validated[-1])} of "
        f"{count(validated[-1].figures['samples'], 'validation image')}; of the training images for "
        f"{_right(last)}{'' if last.complete else f' in {_when(run, last)}'}."
    )
    if best.epoch != validated[-1].epoch:
        said += f" Best was epoch {best.epoch + 1} with {_right(best)}."
    return "Accuracy:", said


def _alike(passes: Sequence[Pass]) -> Sequence[Pass]:
    """Those that may be set beside each other: of all ranks, unless there are none but rank 0's."""
    return [one for one in passes if not one.of_rank_0] or passes


def _when(run: RunFiles, one: Pass) -> str:
    """The training pass that something is said of, where it is of the last one."""
    if not one.complete:
        return f"the part of epoch {one.epoch + 1} that was trained"
    return "the last epoch" if one == run.trained[-1] else f"epoch {one.epoch + 1}"


def _right(one: Pass) -> str:
    top5 = one.figures.get("top5_accuracy")
    also = "" if top5 is None else f" (top-1; top-5 {points_of(top5)})"
    return f"{points_of(one.figures['accuracy'])}{also}"


def _throughput(run: RunFiles) -> tuple[str, str]:
    trained = _alike(run.trained)
    first, later = trained[0], trained[1:]
    whose = " of rank 0" if first.of_rank_0 else ""
    if not later:
        return "Throughput:", f"{rate(first.figures['images_per_s'], 'images')}{whose} while training."
    return "Throughput:", (
        f"{rate(_rate_of(trained), 'images')}{whose} while training: "
        f"{rate(first.figures['images_per_s'], 'images')} in {_first_epoch(run)}, "
        f"{rate(_rate_of(later), 'images')} after it."
    )


def _step_times(run: RunFiles) -> list[tuple[str, str]]:
    told = run.known.get("step_times")
    if not told:
        return []
    last, best = told[-1], min(told, key=lambda one: one["mean_s"])
    of_last = (
        f"the mean of {count(last['steps'], 'step')} up to step {last['step']} of epoch {last['epoch'] + 1}"
    )
    of_best = f"at step {best['step']} of epoch {best['epoch'] + 1}"
    said = f"{seconds(last['mean_s'])}, {of_last}; at best {seconds(best['mean_s'])}, {of_best}."
    return [("Step time:", said)]


def _rate_of(passes: Sequence[Pass]) -> float | None:
    return share(_sum(passes, "samples"), _sum(passes, "wall_s"))


def _sum(passes: Sequence[Pass], name: str) -> float:
    return sum(one.figures[name] or 0.0 for one in passes)


def _waiting(run: RunFiles) -> tuple[str, str]:
    first, later = run.trained[0], run.trained[1:]
    took = seconds(first.figures["wall_s"])
    said = f"{percent(first.wait_share)} of {_first_epoch(run)}'s {took}: {_why([first])}"
    if not later:
        return "Waiting for data:", f"{said}."
    waited = share(_sum(later, "wait_s"), _sum(later, "wall_s"))
    return "Waiting for data:", f"{said}; {percent(waited)} of the epochs after it: {_why(later)}."


def _first_epoch(run: RunFiles) -> str:
    """The first that this run did: one that went on from another's checkpoint begins with a later one."""
    epoch = run.trained[0].epoch
    return f"epoch {epoch + 1}" if epoch else "the first epoch"


def _why(passes: Sequence[Pass]) -> str:
    """What the waiting of some passes means, and what it was for, if there was enough to ask."""
    part = share(_sum(passes, "wait_s"), _sum(passes, "wall_s"))
    if part is None or part < _NO_LIMIT:
        return "data does not limit it"
    limits = "data limits it" if part >= _LIMIT else "data slows it a little"
    causes: dict[str, float] = {}
    for one in passes:
        for cause, wait_s in stalls_of(one).items():
            causes[cause] = causes.get(cause, 0.0) + wait_s
    if causes:
        cause, wait_s = max(causes.items(), key=lambda item: item[1])
        meaning = STALL_CAUSES[cause].meaning if cause in STALL_CAUSES else f"of {cause}"
        return f"{limits}, most of all since {meaning} ({seconds(wait_s)})"
    job = {name: sum(one.job.get(name) or 0 for one in passes) for name in _WORK}
    produced = job["samples_produced"]
    if produced and job["invocations"]:
        work_s = job["fetch_s"] + job["decode_s"] + job["push_s"]
        return f"{limits}; functions were producing {count(produced, 'sample')} ({seconds(work_s)} of work)"
    if produced:
        work_s = job["fetch_s"] + job["decode_s"]
        return f"{limits}; its workers fetched and decoded {count(produced, 'image')} ({seconds(work_s)})"
    read = seconds(_sum(passes, "read_s"))
    return f"{limits}; nothing was produced then, so that it waited for reading ({read}, summed over workers)"


def _first_batch(run: RunFiles) -> tuple[str, str]:
    wait_s = run.trained[0].figures["first_batch_s"]
    said = f"{seconds(wait_s)} after {_first_epoch(run)} began"
    start_s = start_seconds(run.known)
    if start_s is not None:
        said += (
            f", {seconds(start_s + wait_s)} after the run did (data, coordinator, cache, functions, listing "
            "and model in between)"
        )
    return "First batch:", f"{said}."


def _bad_samples(run: RunFiles) -> list[tuple[str, str]]:
    failed = sum(one.job.get("samples_failed") or 0 for one in run.passes)
    if not failed:
        return []
    times = "once" if failed == 1 else f"{failed:,} times"
    return [("Bad samples:", f"{times} functions could not produce one; the table of loading has when.")]


def start_seconds(known: dict[str, Any]) -> float | None:
    """How long the run prepared before its first pass."""
    phases = (known.get("utilization") or {}).get("phases") or ()
    return next((phase["wall_s"] for phase in phases if phase["epoch"] is None), None)


def _cost(run: RunFiles) -> tuple[str, str]:
    bill = run.known.get("bill")
    if not bill:
        return "Cost:", "not known, since there is no report."
    absent = [line["name"] for line in bill["lines"] if line["usd"] is None]
    without = f" Not in it, since no price is known: {', '.join(absent)}." if absent else ""
    if not bill["usd"]:
        return "Cost:", f"nothing of what has a price here was used.{without}"
    parts = ", ".join(f"{line['name']} {usd(line['usd'])}" for line in bill["lines"] if line["usd"])
    per_million = bill["usd_per_million_images"]
    each = "" if per_million is None else f" ({usd(per_million)} for a million training images)"
    return "Cost:", f"{usd(bill['usd'])}{each}: {parts}.{without}"
