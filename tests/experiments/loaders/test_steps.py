"""``recipe.steps`` in the workers of loaders that decode by themselves: the pixels that functions give."""

import numpy as np
import pytest

from superdl.experiments.loaders import open_loader
from superdl.experiments.loaders.samples import LoaderRequest
from superdl.experiments.spec import LoaderSpec, RecipeSpec
from superdl.lambda_prefetch.transforms import Program
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.recipe import Recipe
from superdl.super_wire.request import Limits
from tests.experiments.loaders.opening import BATCH, Source, counted, keys_of, need, opened, samples_of
from tests.fixtures.images import write_images

COUNT = 19
STEPS = (
    {"op": "random_resized_crop", "size": 20, "scale": [0.3, 1.0]},
    {"op": "horizontal_flip", "p": 0.5},
)
RECIPE = RecipeSpec(steps=STEPS, augment_seed=5)

# WebDataset leaves its tar files to be closed by the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("steps") / "train", COUNT)


def functions_give(directory, epoch, bucket=None):
    """Key by label and pixels, as a function makes them."""
    program = Program(
        Recipe(STEPS, augment_seed=5),
        bucket=bucket or f"file://{directory.resolve()}",
        epoch=epoch,
        limit_pixels=Limits().image_pixels,
        step_modules=frozenset(),
    )
    classes = sorted(entry.name for entry in directory.iterdir())
    keys = [path.relative_to(directory).as_posix() for path in directory.rglob("*.jpg")]
    return {
        (classes.index(key.split("/")[0]), program.make((directory / key).read_bytes(), key).tobytes()): key
        for key in keys
    }


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [need["torch"], need["webdataset"], need["mds"], need["litdata"]])
def test_random_steps_give_what_functions_give_in_each_epoch(kind, workers, directory, tmp_path):
    loader = opened(kind, directory, tmp_path, workers=workers, recipe=RECIPE)
    expected = [functions_give(directory, epoch) for epoch in range(3)]
    assert not expected[0].keys() & expected[1].keys()
    for known in expected:
        assert counted(keys_of(loader, known)) == counted([list(known.values())])
    loader.close()


def test_a_shipped_custom_step_runs_in_the_workers(directory, tmp_path, monkeypatch):
    monkeypatch.setenv("SUPER_STEP_MODULES", "experiments.augmentations.heavy")
    heavy = {"op": "custom", "name": "experiments.augmentations.heavy:heavy@1", "random": True}
    recipe = RecipeSpec(steps=(*STEPS, heavy))
    loader = opened("torch", directory, tmp_path, workers=1, recipe=recipe)
    monkeypatch.delenv("SUPER_STEP_MODULES")  # workers start later than the loader is opened
    first, second = ([sample for batch in loader for sample in samples_of(batch)] for _ in range(2))
    assert len(first) == len(second) == COUNT
    assert not set(first) & set(second)
    loader.close()


def test_several_arrays_are_refused_as_no_single_image(directory, tmp_path, monkeypatch):
    monkeypatch.setattr(Program, "make", lambda *_: {"image": np.zeros(3), "mask": np.zeros(3)})
    loader = opened("torch", directory, tmp_path, recipe=RECIPE)
    with pytest.raises(ConfigError, match="several arrays, but models here take a single image"):
        next(iter(loader))
    loader.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["super", "super-threads"])
@pytest.mark.parametrize("recipe", [RECIPE, RecipeSpec(resize=24, crop=20)], ids=["steps", "crop"])
def test_super_gives_the_same_samples_and_labels(kind, recipe, directory, tmp_path):
    plain = opened("torch", directory, tmp_path, recipe=recipe)
    request = LoaderRequest(
        Source(f"file://{directory}"), recipe, LoaderSpec(kind=kind, batch_size=BATCH), True, 0, False
    )
    loader = open_loader(request)
    assert tuple(loader.classes) == tuple(plain.classes)
    for _ in range(2):
        ours, theirs = (
            np.sort([hash(sample) for batch in one for sample in samples_of(batch)])
            for one in (loader, plain)
        )
        np.testing.assert_array_equal(ours, theirs)
    loader.close()
