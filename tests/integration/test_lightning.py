"""SUPER in Lightning's Trainer: docs/frameworks.md verbatim, refused misuse, and resuming."""

import json
import sys
from itertools import chain
from pathlib import Path

import pytest
from torch.utils.data import DataLoader
from torch.utils.data._utils import signal_handling
from torchdata.stateful_dataloader import StatefulDataLoader

from superdl.super_wire.errors import UsageError
from tests.integration import lightning_training
from tests.integration.frameworks import BATCHES, Stopped, code_of, plain_loop, together
from tests.integration.lightning_training import (
    Classifier,
    Validated,
    data_loader,
    pl,
    super_loader,
)
from tests.integration.torchrun import assert_none_is_left, run_to_its_end

PROGRAM = str(Path(lightning_training.__file__))

pytestmark = [
    pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # called by torchdata 0.11
    # Triggered by Lightning 2.6:
    pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes"),
]


@pytest.fixture(scope="module")
def expected(shared_stack, images):
    return plain_loop(images.as_uri(), shared_stack.address)


@pytest.fixture(autouse=True)
def ready(shared_stack, monkeypatch, tmp_path):
    """The page's Trainer takes only the arguments it needs. Tests set theirs in the environment."""
    monkeypatch.setenv("SUPER_COORDINATOR", shared_stack.address)
    # Lightning restores all signal handlers when it ends, but torch installs its SIGCHLD handler once per
    # process. Install it first, for later tests.
    signal_handling._set_SIGCHLD_handler()
    for name in ("LOGGER", "ENABLE_CHECKPOINTING", "ENABLE_PROGRESS_BAR", "ENABLE_MODEL_SUMMARY"):
        monkeypatch.setenv(f"PL_TRAINER_{name}", "False")
    monkeypatch.setenv("PL_TRAINER_ACCELERATOR", "cpu")
    monkeypatch.setenv("PL_TRAINER_DEFAULT_ROOT_DIR", str(tmp_path))


def page(images, model, data="Images", kind=None):
    """The page's code with this model, and optionally another of its data modules or another loader."""
    names = code_of("Lightning", images.as_uri())
    names |= {"Classifier": lambda: model, "Images": names[data]}
    names |= {} if kind is None else {"StatefulDataLoader": kind}
    return names["train"]


def test_the_page_trains_on_what_a_plain_loop_gets(images, expected):
    model = Classifier()
    page(images, model)()
    assert model.seen == list(chain.from_iterable(expected))
    assert model.epochs == [epoch for epoch in range(len(expected)) for _ in range(BATCHES)]


@pytest.mark.parametrize(("data", "taken"), [("Images", 4), ("Images", 13), ("ImagesByWorkers", 13)])
def test_a_checkpoint_is_gone_on_with(images, expected, tmp_path, data, taken):
    first, then = Classifier(taken), Classifier()
    with pytest.raises(Stopped):
        page(images, first, data)()
    page(images, then, data)(str(tmp_path / "stopped.ckpt"))
    assert first.seen + then.seen == list(chain.from_iterable(expected))


@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
def test_an_epochs_checkpoint_is_gone_on_with(images, expected, tmp_path, monkeypatch):
    monkeypatch.setenv("PL_TRAINER_ENABLE_CHECKPOINTING", "True")  # at the end of each epoch, by default
    with pytest.raises(Stopped):
        page(images, Classifier(BATCHES + 1))()
    then = Classifier()
    page(images, then)(str(tmp_path / f"checkpoints/epoch=0-step={BATCHES}.ckpt"))
    assert then.seen == list(chain.from_iterable(expected[1:]))


def test_sanity_checks_limits_and_validation_leave_epochs_as_they_are(images, expected):
    """With persistent workers, and a validation loader of each kind."""
    model = Validated()
    loaders = data_loader(images.as_uri()), super_loader(images.as_uri())
    pl.Trainer(max_epochs=3, limit_train_batches=4).fit(model, loaders[0], loaders[1])
    assert model.seen == list(chain.from_iterable(epoch[:4] for epoch in expected))
    assert model.validated == [*expected[0][:2], *chain.from_iterable(expected)], "two for the sanity check"


@pytest.mark.parametrize("kind", [StatefulDataLoader, DataLoader])
def test_workers_go_on_with_an_epochs_checkpoint(images, expected, tmp_path, kind):
    then = Classifier()
    page(images, then, "ImagesByWorkers", kind)(saved_after_an_epoch(images, tmp_path))
    assert then.seen == list(chain.from_iterable(expected[1:]))


def saved_after_an_epoch(images, directory):
    """A checkpoint taken where ModelCheckpoint also saves one."""
    with pytest.raises(Stopped):
        page(images, Classifier(BATCHES, whole_epoch=True), "ImagesByWorkers")()
    return str(directory / "stopped.ckpt")


def test_overfit_batches_is_refused(images):
    loader = data_loader(images.as_uri(), num_workers=0, persistent_workers=False)
    with (
        pytest.warns(UserWarning, match="You requested to overfit"),
        pytest.raises(UsageError, match="overfit_batches to Lightning's Trainer"),
    ):
        pl.Trainer(overfit_batches=2, max_epochs=1).fit(Classifier(), loader)


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "how"), [("ddp", "page"), ("ddp", "workers"), ("ddp_spawn", "threads")])
def test_two_ranks_train_on_what_a_plain_loop_gets(images, expected, temporary, tmp_path, strategy, how):
    """Also with a DataLoader, although the Trainer is not told to keep its sampler."""
    assert run(temporary, images, tmp_path, strategy=strategy, how=how) == ""
    assert together(tmp_path, 2) == list(chain.from_iterable(expected))


@pytest.mark.slow
def test_two_ranks_go_on_with_a_checkpoint_and_so_does_one(images, expected, temporary, tmp_path):
    first, then = tmp_path / "first", tmp_path / "then"
    assert "Stopped" in run(temporary, images, first, stop_after=13)
    assert run(temporary, images, then, checkpoint=str(first / "stopped.ckpt")) == ""
    assert together(first, 2) + together(then, 2) == list(chain.from_iterable(expected))
    alone = Classifier()
    page(images, alone)(str(first / "stopped.ckpt"))
    assert together(first, 2) + alone.seen == list(chain.from_iterable(expected))


@pytest.mark.slow
def test_a_loader_made_before_the_ranks_are_there_is_refused(images, temporary, tmp_path):
    errors = run(temporary, images, tmp_path, how="early")
    assert "WORLD_SIZE is 2, but RANK is not set" in errors
    assert "with Lightning, in the train_dataloader() hook" in errors


def run(temporary, images, out, *, strategy="ddp", how="page", **more):
    """Run two ranks started by Lightning, through the embedded default."""
    out.mkdir(exist_ok=True)
    settings = {"DEVICES": "2", "STRATEGY": strategy, "DEFAULT_ROOT_DIR": str(out)}
    arguments = json.dumps({"source": images.as_uri(), "out": str(out), "ranks": 2, "how": how} | more)
    errors = run_to_its_end(
        [sys.executable, PROGRAM, arguments],
        temporary,
        **{f"PL_TRAINER_{name}": value for name, value in settings.items()},
    )
    assert_none_is_left(temporary)
    return errors
