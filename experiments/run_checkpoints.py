"""What a run's checkpoints are of, and how a run goes on from another's.

The files are left to `experiments.training.checkpoints`, the states in them to `experiments.training.loop`.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from superdl.experiments.run_state import say
from superdl.experiments.training.checkpoints import BEST, FOLDER, Checkpoints, read_checkpoint
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rich.console import Console

    from superdl.experiments.loaders import Loader
    from superdl.experiments.ranks import Ranks
    from superdl.experiments.run_state import RunState
    from superdl.experiments.spec import Spec
    from superdl.experiments.training import Trainer

__all__ = ["checkpoints_of", "facts_of", "go_on"]


def facts_of(state: RunState, train: Loader, val: Loader | None) -> dict[str, Any]:
    """What decides whether a run can go on from another's checkpoint; the same on all ranks."""
    spec, ranks = state.spec, state.ranks
    recipe = dict(spec.to_mapping()["recipe"])
    steps = recipe.pop("steps")
    listings = ranks.text_of_first(  # files of another host have times of their own
        "listings", lambda: json.dumps([train.fingerprint, None if val is None else val.fingerprint])
    )
    of_train, of_val = json.loads(listings)
    return {
        "model.name": spec.model.name,
        **{f"recipe.{name}": value for name, value in recipe.items()},
        "digest of recipe.steps": None if steps is None else _digest(steps),
        "fingerprint of the training data": of_train,
        "fingerprint of the validation data": of_val,
        "validation images": state.val_samples,
        "classes": len(state.classes),
        "digest of the classes": _digest(list(state.classes)),
        "training images": state.train_samples,
        "seed": spec.seed,
        "epochs": spec.epochs,
        "steps of an epoch": spec.training.steps_per_epoch or int(ranks.smallest([len(train)])[0]),
        "images of a step (loader.batch_size times ranks)": spec.loader.batch_size * ranks.place.replicas,
    }


def checkpoints_of(state: RunState, train: Loader, facts: Mapping[str, Any]) -> Checkpoints | None:
    """The keeper of checkpoints, if the spec asks for any.

    Raises:
        ConfigError: some are to be kept in mid-epoch, where the loader cannot go on.

    """
    training = state.spec.training
    if training.checkpoint_steps is not None and not train.resumes_within_epochs:
        raise ConfigError(
            f"training.checkpoint_steps: loader.kind {state.spec.loader.kind} cannot go on within an epoch; "
            "set training.checkpoint_every=1 in its place, or loader.kind=super"
        )
    if training.checkpoint_every == 0 and training.checkpoint_steps is None and training.best_to is None:
        return None
    return Checkpoints(state.directory / FOLDER, facts, _spec_digest(state.spec))


def _spec_digest(spec: Spec) -> str:
    """Of all that a resumed run has the same, if it is resumed as it was."""
    mapping = spec.to_mapping()
    for name in ("name", "output", "device"):
        del mapping[name]
    del mapping["training"]["resume"]
    return _digest(mapping)


def _digest(value: Any) -> str:
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=16).hexdigest()


def _best_of(resumed: Path, checkpoints: Checkpoints, ranks: Ranks) -> tuple[float | None, str | None]:
    """Take over the best checkpoint beside ``resumed``, on rank 0; its accuracy, or why there is none."""

    def take() -> str:
        try:
            return json.dumps([checkpoints.take_best_of(resumed), None])
        except ConfigError as error:
            return json.dumps([None, str(error)])

    best, refused = json.loads(ranks.text_of_first("the best of the resumed run", take))
    if best is not None:
        return float(best), None
    reason = refused or f"there is no {BEST} beside it"
    return None, f"the best checkpoint until then is not taken over, and is judged anew: {reason}"


def go_on(
    state: RunState,
    trainer: Trainer,
    facts: Mapping[str, Any],
    checkpoints: Checkpoints | None,
    console: Console,
) -> None:
    """Have ``trainer`` go on from the checkpoint that the spec names, and say so.

    Raises:
        ConfigError: there is none, it is damaged, or it is of another training.

    """
    place = str(state.spec.training.resume)
    checkpoint, path = read_checkpoint(place, state.ranks)
    checkpoint.check(facts, place)
    notes = [f"{place}: {trainer.resume(checkpoint)}"]
    if checkpoint.spec_digest != _spec_digest(state.spec):
        notes.append("the spec is another one than the checkpoint's, in what does not keep it from going on")
    if checkpoints is not None:
        trainer.best, note = _best_of(path, checkpoints, state.ranks)
        if note is not None and checkpoint.best is not None:
            notes.append(note)
    for note in notes:
        state.notes.append(note)
        say(console, note)
