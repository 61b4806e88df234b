"""SUPER in Hugging Face Accelerate: docs/frameworks.md verbatim, refused misuse, and resuming."""

import json
from itertools import chain
from pathlib import Path

import pytest
from accelerate import Accelerator, skip_first_batches

from superdl import SuperDataset, SuperLoader
from superdl.super_wire.errors import UsageError
from tests.integration import accelerate_training
from tests.integration.accelerate_training import Steps, data_loader, parts, planned_rates
from tests.integration.frameworks import Stopped, code_of, plain_loop, together, two_ranks

PROGRAM = str(Path(accelerate_training.__file__))


@pytest.fixture(scope="module")
def expected(shared_stack, images):
    return plain_loop(images.as_uri(), shared_stack.address)


@pytest.fixture(autouse=True)
def ready(shared_stack, monkeypatch):
    monkeypatch.setenv("SUPER_COORDINATOR", shared_stack.address)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")


def test_the_page_trains_on_what_a_plain_loop_gets(images, expected):
    steps = Steps()
    code_of("Accelerate", images.as_uri())["train"](*parts(), steps)
    assert steps.seen == list(chain.from_iterable(expected))
    assert steps.rates == planned_rates()


@pytest.mark.parametrize("taken", [4, 13])
def test_a_saved_state_is_gone_on_with(images, expected, tmp_path, taken):
    train = code_of("Accelerate", images.as_uri())["train"]
    first, then = Steps(tmp_path / "state", taken), Steps()
    with pytest.raises(Stopped):
        train(*parts(), first)
    train(*parts(), then, str(tmp_path / "state"))
    assert first.seen + then.seen == list(chain.from_iterable(expected))
    assert first.rates + then.rates == planned_rates()


def test_a_prepared_data_loader_is_refused(images):
    prepared = Accelerator().prepare(data_loader(images.as_uri()))
    with pytest.raises(UsageError, match=r"Accelerate's prepare\(\)"):
        next(iter(prepared))


def test_skipping_the_first_batches_is_refused_with_what_to_do(images):
    with SuperLoader(SuperDataset(images.as_uri()), batch_size=8) as loader:
        for given in (loader, Accelerator().prepare(loader)):
            with pytest.raises(UsageError, match="skip_first_batches.*load_state_dict"):
                skip_first_batches(given, 2)


@pytest.mark.slow
def test_two_ranks_train_on_what_a_plain_loop_gets(images, expected, temporary, tmp_path):
    assert two_ranks(PROGRAM, temporary, images, tmp_path) == ""
    assert together(tmp_path, 2) == list(chain.from_iterable(expected))
    for rank in range(2):
        assert json.loads((tmp_path / f"rates{rank}.json").read_text()) == planned_rates()


@pytest.mark.slow
def test_a_schedule_that_two_ranks_would_step_twice_is_refused(images, temporary, tmp_path):
    errors = two_ranks(PROGRAM, temporary, images, tmp_path, how="schedule")
    assert "UsageError: Accelerate would step the prepared CosineAnnealingLR 2 times" in errors


@pytest.mark.slow
def test_two_ranks_go_on_with_a_saved_state(images, expected, temporary, tmp_path):
    first, then = tmp_path / "first", tmp_path / "then"
    assert "Stopped" in two_ranks(PROGRAM, temporary, images, first, stop_after=13)
    assert two_ranks(PROGRAM, temporary, images, then, checkpoint=str(first / "state")) == ""
    assert together(first, 2) + together(then, 2) == list(chain.from_iterable(expected))
