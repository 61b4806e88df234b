"""Undecodable samples with every loader: each is reported, and the epoch continues without them."""

import gc
import logging
import shutil
import subprocess
import sys
from itertools import pairwise

import pytest
from torch.utils.data import DataLoader

from superdl import SuperDataset, SuperLoader, SuperMix, SuperSampler
from superdl.super_wire.errors import BadSampleError
from tests.fixtures.images import SIDE, write_images
from tests.integration.delivery import RECIPE, collect, reading

BAD = ("ant/broken.jpg", "bee/broken.jpg", "dog/broken.jpg")


@pytest.fixture(autouse=True)
def _ended():
    """A dataset reports its bad samples again when collected: collect it within its own test."""
    yield
    gc.collect()


@pytest.fixture
def dirty(tmp_path):
    """Sixteen good images, and three files that are not images."""
    directory = write_images(tmp_path / "dirty", 16)
    for name in BAD:
        (directory / name).write_text("this is no image")
    return directory


def named_in(caplog, source):
    """The bad files of a source that warnings name, sorted.

    Datasets of earlier tests report theirs again when they are collected.
    """
    records = [record for record in caplog.records if record.levelno == logging.WARNING]
    told = [line for line in (record.getMessage() for record in records) if str(source) in line]
    return sorted(name for name in BAD for line in told if name in line)


def loader_of(kind, dataset, sampler):
    if kind == "threads":
        return SuperLoader(dataset, sampler)
    workers = 0 if kind == "none" else 2
    how = {"multiprocessing_context": kind} if workers else {}
    return DataLoader(dataset, sampler=sampler, batch_size=None, num_workers=workers, **how)


@pytest.mark.parametrize("kind", ["none", "threads", "fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_all_bad_samples_are_named_by_the_end_of_the_epoch(shared_stack, dirty, caplog, kind):
    dataset = SuperDataset(dirty, RECIPE, on_bad_sample="skip")
    with SuperSampler(
        dataset, batch_size=4, shuffle=True, seed=1, coordinator=shared_stack.address
    ) as sampler:
        loader = loader_of(kind, dataset, sampler)
        for epoch in (1, 2):
            assert sum(len(images) for images, _ in loader) == 16
            assert named_in(caplog, dirty) == [*BAD]  # no more in the second epoch than in the first
            bad = sorted(sampler.bad_samples)
            assert [(one.key, one.handled, one.times) for one in bad] == [
                (name, "skipped", epoch) for name in BAD
            ]
            assert all("not_an_image" in one.reason for one in bad)
        assert getattr(loader, "bad_samples", sampler.bad_samples) == dataset.bad_samples


def test_a_mix_names_the_bad_samples_of_each_of_its_datasets(shared_stack, dirty, caplog):
    other = shutil.copytree(dirty, dirty.parent / "other")
    parts = [SuperDataset(place, RECIPE, on_bad_sample="replace") for place in (dirty, other)]
    how = {"batch_size": 4, "coordinator": shared_stack.address}
    with SuperLoader(SuperMix(parts), **how) as loader:
        assert sum(len(images) for images, _ in loader) == 38
        assert sorted(one.key for one in loader.bad_samples) == sorted(BAD * 2)
    assert named_in(caplog, dirty.parent) == sorted(BAD * 2)


LEFT_EARLY = """
import sys
from torch.utils.data import DataLoader
from superdl import Recipe, SuperDataset, SuperSampler
dataset = SuperDataset(sys.argv[1], Recipe.image(resize=32, crop=32), on_bad_sample="replace")
sampler = SuperSampler(dataset, batch_size=19, shuffle=False, coordinator=sys.argv[2])
for batch in DataLoader(dataset, sampler=sampler, batch_size=None, num_workers=1):
    break
"""


def test_a_script_that_leaves_its_loop_names_them_at_exit(shared_stack, dirty):
    command = [sys.executable, "-c", LEFT_EARLY, str(dirty), shared_stack.address]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    *each, last = ended.stderr.splitlines()
    assert [name in line for name, line in zip(BAD, each[-3:], strict=True)] == [True] * 3
    assert all(name in last for name in BAD)


def batches_of_one(stack, dirty, policy, kind, ranks):
    """Each rank's batches: the keys, and which samples are flagged. Each key has one id."""
    dataset = SuperDataset(dirty, RECIPE, on_bad_sample=policy, return_info=True)
    came = []
    for rank in range(ranks):
        job = f"{policy} {kind} {ranks}"
        how = {"rank": rank, "num_replicas": ranks, "job": job, "shuffle": False}
        with SuperSampler(dataset, batch_size=1, coordinator=stack.address, **how) as sampler:
            infos = [info for *_, info in loader_of(kind, dataset, sampler)]
            assert len(sampler) == -(-19 // ranks)
        ids = {(info.keys, info.sample_ids) for info in infos}
        assert len(ids) == len(dict(ids))
        came.append([(info.keys, info.padding is not None and info.padding.all()) for info in infos])
    return came, dataset


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("policy", ["skip", "replace"])
@pytest.mark.parametrize("kind", ["none", "threads"])
def test_a_batch_of_bad_samples_alone_ends_no_run(shared_stack, dirty, policy, kind, ranks):
    came, dataset = batches_of_one(shared_stack, dirty, policy, kind, ranks)
    left_out = policy == "skip" and kind == "threads" and ranks == 1
    delivered = [key for batches in came for (key,), _ in batches]
    assert not set(delivered) & set(BAD)
    assert sorted({*delivered, *BAD}) == [path for path, _ in relative(dataset)]
    assert {one.handled for one in dataset.bad_samples} == {"batch left out" if left_out else "batch filled"}
    assert [len(batches) for batches in came] == [16 if left_out else -(-19 // ranks)] * ranks
    for batches in came:
        for (before, _), (key, flagged) in pairwise(batches):
            assert flagged or key != before
    assert sum(flagged for batches in came for _, flagged in batches) >= (0 if left_out else 3)


def relative(dataset):
    place = dataset.source.removeprefix("file://")
    return [(path.removeprefix(f"{place}/"), label) for path, label in dataset.samples]


@pytest.mark.parametrize(("policy", "kind"), [("replace", "none"), ("skip", "none"), ("skip", "threads")])
def test_a_reader_that_never_saw_a_good_sample_raises(shared_stack, tmp_path, policy, kind):
    (tmp_path / "a").mkdir()
    for number in range(3):
        (tmp_path / "a" / f"{number}.jpg").write_text("this is no image")
    dataset = SuperDataset(tmp_path, RECIPE, on_bad_sample=policy)
    with SuperSampler(dataset, batch_size=2, shuffle=True, coordinator=shared_stack.address) as sampler:
        loader = loader_of(kind, dataset, sampler)
        for _ in range(2):
            with pytest.raises(BadSampleError):
                next(iter(loader))
        assert len(dataset.bad_samples) == (3 if kind == "threads" else 0)


def test_an_epoch_of_which_bad_samples_alone_are_left_ends(shared_stack, tmp_path):
    (image,) = write_images(tmp_path / "few", 1).glob("*/*.jpg")
    (image.parent / "zzz.jpg").write_text("this is no image")
    how = {"batch_size": 1, "shuffle": False, "coordinator": shared_stack.address}
    state = None
    for _ in range(2):  # the second run resumes the first
        dataset = SuperDataset(tmp_path / "few", RECIPE, on_bad_sample="skip")
        with SuperSampler(dataset, job="goes on", **how) as sampler:
            loader = SuperLoader(dataset, sampler)
            if state is None:
                next(iter(loader))
                state = loader.state_dict()
                continue
            loader.load_state_dict(state)
            assert list(loader) == []
            assert [bad.key for bad in loader.bad_samples] == [f"{image.parent.name}/zzz.jpg"]


def test_one_sample_alone_is_an_error_whatever_batches_do_with_it(here, dirty):
    dataset = SuperDataset(dirty, RECIPE, on_bad_sample="replace")
    for place, (path, _) in enumerate(dataset.samples):
        if path.endswith(BAD):
            with pytest.raises(BadSampleError, match=r"/broken\.jpg"):
                dataset[place]
        else:
            assert dataset[place][0].shape == (3, SIDE, SIDE)


def test_a_file_that_changes_after_listing_is_told(shared_stack, tmp_path):
    directory = write_images(tmp_path / "images", 8)
    how = {"batch_size": 8, "shuffle": False, "read_timeout": 60}
    with reading(directory.as_uri(), shared_stack.address, **how) as (_, loader):
        assert len(collect(loader)) == 8
        with shared_stack.valkey.client() as client:
            client.unlink(*client.keys("super:r1:*"))
        changed = directory / "ant" / "00000.jpg"
        changed.write_bytes(changed.read_bytes() + b"more")
        told = r"ant/00000\.jpg.*changed since it was listed at 20\d\d-"
        with pytest.raises(BadSampleError, match=told):
            collect(loader)
