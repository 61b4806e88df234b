"""Custom steps run only if the settings allow their module, and in the requested version."""

import sys

import numpy as np
import pytest
from PIL import Image

from superdl.lambda_prefetch.sources import SampleFailedError
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.recipe import Recipe
from superdl.super_wire.request import Outcome
from tests.lambda_prefetch.prefetching import pixels, program_of

NAME = "step_module_of_tests"
MODULE = """
import numpy as np
from pickle import loads
from superdl.lambda_prefetch import custom_step

__version__ = "1"
not_callable = 3

def helper(array):
    return array

def step(function):
    return custom_step("2.1")(function)

@step
def invert(array, amount=255):
    return amount - array
@step
def noise(array, *, seed):
    return array ^ np.random.default_rng(seed).integers(0, 256, array.shape, dtype=np.uint8)
@step
def fails(array):
    raise RuntimeError("no such luck")
@step
def halves(array):
    return {"left": array[:, :3], "mask": array[:, 3:, 0]}
@step
def swapped(arrays):
    return {"left": arrays["mask"], "mask": arrays["left"]}
floats = step(lambda array: array.astype(np.float32) / 255)
gives_text = step(lambda array: "text")
gives_objects = step(lambda array: np.array([None]))
gives_no_names = step(lambda array: {"": array})
gives_text_in_a_dict = step(lambda array: {"a": array, "b": "text"})
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / f"{NAME}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield NAME
    sys.modules.pop(NAME, None)


def custom(name, *, random=False, **params):
    return {"op": "custom", "name": name, "params": params, "random": random}


def run(steps, *allowed, epoch=0):
    return program_of(Recipe(steps), epoch=epoch, modules=allowed).run(Image.fromarray(pixels()), "key")


def test_custom_and_built_in_steps_run_in_order(module):
    made = run(
        [{"op": "resize", "size": 20}, custom(f"{module}:invert@2.1"), {"op": "center_crop", "size": 9}],
        module,
    )
    plain = run([{"op": "resize", "size": 20}, {"op": "center_crop", "size": 9}])
    assert np.array_equal(made, 255 - plain)


def test_a_random_steps_seed_differs_between_epochs_only(module):
    steps = [custom(f"{module}:noise@2.1", random=True)]
    assert np.array_equal(run(steps, module, epoch=1), run(steps, module, epoch=1))
    assert not np.array_equal(run(steps, module, epoch=1), run(steps, module, epoch=2))


@pytest.mark.parametrize(
    ("name", "allowed", "words"),
    [
        ("{module}:invert@2.1", [], r"SUPER_STEP_MODULES does not list step_module_of_tests \(it lists none"),
        ("os:getcwd@1", [NAME], "SUPER_STEP_MODULES does not list os"),
        ("{module}:invert@2.2", [NAME], "version 2.1 is deployed"),
        ("{module}:not_callable@2.1", [NAME], "has no function not_callable"),
        ("no_such_module_here:f@1", ["no_such_module_here"], "ModuleNotFoundError"),
        ("{module}:helper@1", [NAME], "not marked as a step"),
        ("{module}:loads@1", [NAME], "imports loads from _pickle"),
    ],
)
def test_a_step_that_is_not_allowed_or_not_deployed_refuses_the_request(module, name, allowed, words):
    with pytest.raises(ConfigError, match=words):
        run([custom(name.format(module=module))], *allowed)


def test_the_old_name_of_a_moved_step_stays_valid():
    step = custom("experiments.augmentations.heavy:heavy@1", random=True, rounds=1)
    made = run([step], "superdl.experiments.augmentations.heavy", epoch=1)
    assert not np.array_equal(made, pixels())


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("fails", "RuntimeError: no such luck"),
        ("gives_text", "returned str"),
        ("gives_objects", "returned object of shape"),
        ("gives_no_names", r"returned a dict with the keys \[''\]"),
        ("gives_text_in_a_dict", "returned str"),
    ],
)
def test_a_step_that_raises_or_returns_no_array_fails_the_sample_for_now(module, function, words):
    with pytest.raises(SampleFailedError, match=words) as caught:
        run([custom(f"{module}:{function}@2.1")], module)
    assert caught.value.outcome is Outcome.STEP_ERROR
    assert not caught.value.reason


def test_a_step_may_return_named_arrays(module):
    steps = [custom(f"{module}:halves@2.1")]
    made = run(steps, module)
    assert np.array_equal(made["left"], pixels()[:, :3])
    assert np.array_equal(made["mask"], pixels()[:, 3:, 0])
    after = run([*steps, custom(f"{module}:swapped@2.1")], module)
    assert np.array_equal(after["left"], made["mask"])
    with pytest.raises(SampleFailedError, match="resize.* left, mask"):
        run([*steps, {"op": "resize", "size": 8}], module)


def test_an_image_step_needs_an_image(module):
    with pytest.raises(SampleFailedError, match=r"step 2 \(resize\) needs uint8") as caught:
        run([custom(f"{module}:floats@2.1"), {"op": "resize", "size": 8}], module)
    assert caught.value.outcome is Outcome.STEP_ERROR
