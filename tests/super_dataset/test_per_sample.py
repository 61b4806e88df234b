"""``PerSample``: a sample's draws are reproducible, and other generators do not advance."""

import pickle
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import DataLoader

from superdl.super_dataset import PerSample, SuperLoader
from superdl.super_wire.errors import BadSampleError, UsageError
from superdl.super_wire.store import DirectoryStore
from tests.fixtures.ports import free_port
from tests.super_dataset.augmenting import batch, info_of
from tests.super_dataset.stored_batches import bound_dataset, images, packed, ref_of, stored, tombstone

SIZE, BATCHES = 5, 4


def drawn(image):
    """The image's pixels, and three draws from each generator that transforms use."""
    draws = [random.random() for _ in range(3)], np.random.rand(3), torch.rand(3)  # noqa: NPY002
    return torch.cat([torch.from_numpy(np.array(image)).flatten().float(), *map(torch.as_tensor, draws)])


def drawn_by_generator(image, generator):
    return torch.rand(6, generator=generator) + np.array(image).mean()


def drawn_by_both(image, generator, rng):
    return drawn_by_generator(image, generator) + torch.from_numpy(drawn_by_rng(image, rng=rng))


def drawn_by_rng(image, *, rng):
    return rng.random(6) + np.array(image).mean()


def gone_wrong(image):
    random.random()
    raise StopIteration("no more")


class Albumentation:
    """Called like an albumentations transform, whose generators are set from outside."""

    def set_random_state(self, random_generator, py_random):
        self.numbers, self.python = random_generator, py_random

    def __call__(self, *args, force_apply=False, **data):
        assert not args
        noise = self.numbers.integers(100), int(self.python.random() * 100)
        return {"image": data["image"].astype(np.int64) + noise[0] + 1000 * noise[1]}


def global_states():
    states = random.getstate(), np.random.get_state(), torch.get_rng_state().numpy()  # noqa: NPY002
    return [pickle.dumps(state) for state in states]


class AlsoStates:
    """A dataset whose items include whether the read left the process's generators unchanged."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __getitem__(self, ref):
        before = global_states()
        item = self.dataset[ref]
        return *item, before == global_states()


def epoch_of(refs, epoch):
    return [replace(ref, epoch=epoch) for ref in refs]


@pytest.fixture
def refs(tmp_path):
    pack_store, cache = (
        DirectoryStore.open(tmp_path / "store", create=True),
        f"redis://127.0.0.1:{free_port()}",
    )
    return [packed(pack_store, ref_of(SIZE, cache, position=n), images(SIZE, seed=n)) for n in range(BATCHES)]


@given(
    numbers=st.lists(st.integers(0, 50), min_size=1, max_size=6),
    order=st.randoms(use_true_random=False),
    seed=st.integers(-(2**63), 2**63 - 1),
    epoch=st.integers(0, 2**40),
    transform=st.sampled_from([drawn, drawn_by_generator, drawn_by_rng, drawn_by_both, Albumentation()]),
)
def test_draws_only_depend_on_seed_epoch_and_sample(numbers, order, seed, epoch, transform):
    per_sample = PerSample(transform, seed=seed)
    together, labels = per_sample(batch(*numbers), numbers, info_of(*numbers, epoch=epoch))
    assert labels is numbers
    shuffled = numbers.copy()
    order.shuffle(shuffled)
    order.random()
    again, _ = PerSample(transform, seed=seed)(batch(*shuffled), None, info_of(*shuffled, epoch=epoch))
    for number, one in zip(shuffled, again, strict=True):
        assert torch.equal(one, together[numbers.index(number)])
    assert len({one.numpy().tobytes() for one in together}) == len(set(numbers))
    for other in (
        PerSample(transform, seed=-1 - seed)(batch(*numbers), None, info_of(*numbers, epoch=epoch)),
        per_sample(batch(*numbers), None, info_of(*numbers, epoch=epoch + 1)),
    ):
        assert not any(torch.equal(one, new) for one, new in zip(together, other[0], strict=True))


def whole_numbers(image):
    numbers = random.getrandbits(32), np.random.randint(2**32), torch.randint(2**32, ()).item()  # noqa: NPY002
    return torch.tensor(numbers)


def own_whole_numbers(image, generator, rng):
    return torch.tensor([torch.randint(2**32, (), generator=generator).item(), rng.integers(2**32)])


class StateOfWholeNumbers(Albumentation):
    def __call__(self, *, image):
        return {"image": np.array([self.python.getrandbits(32), self.numbers.integers(2**32)])}


@pytest.mark.parametrize(
    ("transform", "numbers"),
    [
        (whole_numbers, [507847536, 2540688464, 294685732]),
        (own_whole_numbers, [2779532682, 2031225790]),
        (StateOfWholeNumbers(), [498956226, 3828496029]),
    ],
)
def test_draws_are_the_same_in_every_version(transform, numbers):
    """A run resumed with a newer version draws what the older one would have drawn."""
    made, _ = PerSample(transform, seed=5)(batch(1), None, info_of(1, epoch=3))
    assert made.tolist() == [numbers]


def test_the_sampler_s_seed_is_the_default(refs):
    dataset = bound_dataset(transform=drawn)
    made = [dataset[replace(refs[0], seed=seed)][0] for seed in (0, 1)]
    assert not torch.equal(*made)
    assert torch.equal(made[1], bound_dataset(transform=PerSample(drawn, seed=1))[refs[0]][0])


@pytest.mark.parametrize("transform", [drawn, gone_wrong])
def test_global_generators_are_restored(transform):
    before = global_states()
    try:
        PerSample(transform)(batch(1, 2), None, info_of(1, 2))
    except RuntimeError:
        assert transform is gone_wrong
    assert global_states() == before


@pytest.mark.parametrize("result", [np.full(3, np.nan), {"a": ["text", 1.5]}, object()])
def test_a_deterministic_transform_touches_no_generator(result):
    before = global_states()
    made, _ = PerSample(lambda image: result, seed=None)(batch(1, 2), None, info_of(1, 2))
    assert len(made["a"][1] if isinstance(result, dict) else made) == 2
    assert global_states() == before


def loaded(refs, transform, *, workers=0, method=None):
    dataset = AlsoStates(bound_dataset(transform=transform, return_info=True))
    context = {"multiprocessing_context": method} if method else {}
    found = {}
    for made, labels, info, untouched in DataLoader(
        dataset, sampler=refs, batch_size=None, num_workers=workers, **context
    ):
        assert untouched
        assert isinstance(made, torch.Tensor)
        assert labels.tolist() == list(range(100, 100 + SIZE))
        found |= {(info.epoch, key): one.clone() for key, one in zip(info.keys, made, strict=True)}
    return found


def same(found, others):
    return found.keys() == others.keys() and all(torch.equal(found[key], others[key]) for key in found)


@pytest.mark.parametrize("transform", [drawn, pytest.param(Albumentation(), marks=pytest.mark.slow)])
def test_any_number_of_workers_gives_the_same_results(refs, transform):
    both = [*epoch_of(refs, 0), *epoch_of(refs, 1)]
    found = loaded(both, transform)
    assert len({one.numpy().tobytes() for one in found.values()}) == len(found) == 2 * BATCHES * SIZE
    for workers, method in [(1, "fork"), (2, "fork"), (1, "spawn")]:
        random.seed(workers)  # the trainer's generators have no influence
        torch.manual_seed(workers)
        assert same(loaded(list(reversed(both)), transform, workers=workers, method=method), found)


@pytest.mark.parametrize("transform", [drawn, Albumentation()])
def test_threads_may_not_use_global_generators(refs, transform):
    before = global_states()
    with pytest.raises(UsageError, match="race with others"):
        next(iter(SuperLoader(bound_dataset(transform=transform), refs, threads=1)))
    assert global_states() == before


class ToTensor:
    """Passes for torchvision's, and computes the same."""

    __module__ = "torchvision.transforms.transforms"

    def __call__(self, image):
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().to(torch.float32).div(255)


def test_a_loader_moves_bytes_and_returns_the_pipeline_s_results(refs):
    seen = []

    class Wrapped(AlsoStates):
        def __getitem__(self, ref):
            seen.append(self.dataset[ref][0])
            return seen[-1]

    dataset = bound_dataset(transform=ToTensor())
    on_cpu = [made for made, _ in SuperLoader(dataset, refs, "cpu")]
    assert torch.equal(on_cpu[0][0], ToTensor()(images(SIZE, seed=0)[0]))
    for by in ({"threads": 1}, {"threads": 0, "num_workers": 1}, {"threads": 0, "num_workers": 0}):
        for made, _ in SuperLoader(dataset, refs, "meta", **by):
            assert (made.dtype, made.shape, made.device.type) == (torch.float32, on_cpu[0].shape, "meta")
    for made in SuperLoader(Wrapped(dataset), refs, "meta", threads=1):
        assert made.shape == on_cpu[0].shape
    # A dataset's wrapper sees finished batches.
    assert all(torch.equal(*pair) for pair in zip(seen, on_cpu, strict=True))


@pytest.mark.parametrize("policy", ["skip", "replace"])
@pytest.mark.parametrize("with_info", [False, True])
def test_draws_follow_samples_if_others_are_bad(valkey, policy, with_info):
    arrays = images(4)
    whole = stored(valkey, arrays)
    expected, _ = bound_dataset(transform=drawn)[whole]
    ref = stored(valkey, [tombstone("train/0-0.jpg"), *arrays[1:3], tombstone("train/0-3.jpg")])
    dataset = bound_dataset(transform=drawn, on_bad_sample=policy, return_info=with_info)
    made, labels, *info = dataset[ref]
    chosen = [1, 2] if policy == "skip" else [1, 1, 2, 1]
    assert labels.tolist() == [100 + at for at in chosen]
    assert torch.equal(made, expected[chosen])
    assert [one.keys for one in info] == [tuple(whole.keys[at] for at in chosen)] * with_info
    with pytest.raises(BadSampleError):
        bound_dataset(transform=drawn)[ref]


@pytest.mark.parametrize("sides", [(8, 8), (8, 9)])
def test_repeated_samples_do_not_share_memory(valkey, sides):
    def in_place(image):
        return image.add_(1)

    arrays = [images(1, side)[0] // 2 for side in sides]
    ref = stored(valkey, [*(tombstone(f"train/0-{at}.jpg") for at in range(2)), *arrays])
    transform = PerSample(in_place, takes="tensor", seed=None)
    made, _ = bound_dataset(transform=transform, on_bad_sample="replace")[ref]
    expected = [torch.from_numpy(array + 1).movedim(-1, 0) for array in arrays]
    standing = [expected[0]] * 3 + expected[1:]
    assert all(torch.equal(*pair) for pair in zip(made, standing, strict=True))


def mirrored(image):
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)


def test_pil_images_come_as_a_list_and_one_line_names_the_remedy(refs, capfd):
    how = {"num_workers": 2, "multiprocessing_context": "spawn"}
    for images_of_batch, _ in DataLoader(
        bound_dataset(transform=mirrored), sampler=refs, batch_size=None, **how
    ):
        assert all(isinstance(image, Image.Image) for image in images_of_batch)
    assert capfd.readouterr().err.count("v2.ToImage()") == 1, "of both processes, for all batches"


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (3, "RGB"), (4, "RGBA")])
def test_every_input_form_has_the_same_pixels(channels, mode):
    pixels = batch(1, 2, channels=channels)
    seen = []
    for takes in ("pil", "numpy", "tensor"):
        PerSample(seen.append, takes=takes)(pixels, None, info_of(1, 2))
    assert [image.mode for image in seen[:2]] == [mode] * 2
    for image, array, tensor, expected in zip(seen[:2], seen[2:4], seen[4:], pixels, strict=True):
        rows = expected.permute(1, 2, 0).numpy()
        assert np.array_equal(np.asarray(image).reshape(rows.shape), rows)
        assert np.array_equal(array, rows)
        assert np.shares_memory(array, rows)
        assert torch.equal(tensor, expected)


def test_other_arrays_are_passed_unchanged_or_rejected():
    numbers = torch.arange(6, dtype=torch.int32).view(2, 3)
    made, _ = PerSample(lambda row: row * 2, takes="tensor")(numbers, None, info_of(1, 2))
    assert torch.equal(made, numbers * 2)
    with pytest.raises(UsageError, match=r"int32 of shape \(3,\).*takes='tensor'"):
        PerSample(lambda row: row)(numbers, None, info_of(1, 2))


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_names_its_sample(refs, workers):
    loader = DataLoader(
        bound_dataset(transform=gone_wrong), sampler=refs, batch_size=None, num_workers=workers
    )
    with pytest.raises(RuntimeError) as raised:
        next(iter(loader))
    notes = getattr(raised.value.__cause__, "__notes__", [str(raised.value)])
    assert "raised by the transform for train/0-0.jpg, called with takes='pil'" in notes[0]


def by_name(*, image, rng):
    return {"image": np.asarray(image) + rng.integers(1)}


@pytest.mark.parametrize("takes", [None, "pil"])
def test_images_can_be_passed_by_keyword(refs, takes):
    made, _ = bound_dataset(transform=PerSample(by_name, takes=takes) if takes else by_name)[refs[0]]
    assert np.array_equal(made.numpy(), np.stack(images(SIZE)))
