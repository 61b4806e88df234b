"""Bad input through the public API, each with an error that names the thing, the reason and the remedy."""

from __future__ import annotations

import os
import pickle
from typing import TYPE_CHECKING

import pytest

from superdl.sampler import SuperSampler
from superdl.super_dataset import Recipe, SuperDataset
from superdl.super_wire.errors import (
    CacheError,
    CacheUnreachableError,
    ConfigError,
    CoordinatorUnreachableError,
    PlanError,
    SourceEmptyError,
    SourceError,
    SourceNotFoundError,
    SuperError,
    UsageError,
)
from tests.fixtures.images import SIDE
from tests.fixtures.valkey import free_port

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fixtures.stack import Stack

RECIPE = Recipe.image(resize=SIDE, crop=SIDE)


@pytest.fixture
def open_sampler(shared_stack: Stack) -> Callable[..., SuperSampler]:
    def opened(source: Path, **arguments: object) -> SuperSampler:
        dataset = SuperDataset(str(source), RECIPE)
        return SuperSampler(dataset, **{"batch_size": 16, "coordinator": shared_stack.address, **arguments})

    return opened


def test_a_source_that_is_none(
    open_sampler: Callable[..., SuperSampler], images: Path, tmp_path: Path
) -> None:
    with pytest.raises(SourceNotFoundError, match="no-such-directory"):
        open_sampler(tmp_path / "no-such-directory")
    with pytest.raises(SourceEmptyError, match=str(tmp_path)):
        open_sampler(tmp_path)
    os.link(next(images.glob("*/*.jpg")), tmp_path / "one.jpg")
    with pytest.raises(SourceError, match="key_list"):  # there are no class folders
        open_sampler(tmp_path)
    with pytest.raises(SuperError, match=r"gs://.*s3://"):
        SuperDataset("gs://bucket/prefix", RECIPE)


def test_a_batch_size_that_does_not_fit(open_sampler: Callable[..., SuperSampler], images: Path) -> None:
    for batch_size in (0, -1, 1.5, "16"):
        with pytest.raises(ConfigError, match="batch_size"):
            open_sampler(images, batch_size=batch_size)
    with pytest.raises(PlanError, match=r"1000.*150.*drop_last"):
        open_sampler(images, batch_size=1000, drop_last=True)
    with open_sampler(images, batch_size=1000) as sampler:  # the whole dataset
        assert len(sampler) == 1
        assert len(next(iter(sampler))) == 150


def test_a_batch_larger_than_the_cache(shared_stack: Stack, images: Path) -> None:
    dataset = SuperDataset(str(images), Recipe.image(resize=4096, crop=4096))
    with pytest.raises(ConfigError, match=r"cache budget.*batch_size"):
        SuperSampler(dataset, batch_size=16, coordinator=shared_stack.address)


@pytest.mark.slow  # it is waited for
def test_no_coordinator_there(images: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(CoordinatorUnreachableError, match=address):
        SuperSampler(SuperDataset(str(images), RECIPE), batch_size=16, coordinator=address)


def test_beyond_loopback_nobody_is_called_without_a_token(images: Path) -> None:
    with pytest.raises(ConfigError, match=r"192\.0\.2\.1.*SUPER_TOKEN"):
        SuperSampler(SuperDataset(str(images), RECIPE), batch_size=16, coordinator="192.0.2.1:50051")


@pytest.mark.slow  # it is waited for
def test_a_cache_that_does_not_answer(stack: Stack, images: Path) -> None:
    stack.valkey.kill()
    with pytest.raises(CacheUnreachableError, match=stack.valkey.unix_url):
        SuperSampler(SuperDataset(str(images), RECIPE), batch_size=16, coordinator=stack.address)
    stack.valkey.start()


def test_a_cache_that_wants_a_password(
    open_sampler: Callable[..., SuperSampler], images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUPER_CACHE_PASSWORD", "wrong")
    with pytest.raises(CacheError, match="SUPER_CACHE_PASSWORD") as caught:
        open_sampler(images)
    assert "wrong" not in str(caught.value).replace("is wrong", "")


def test_a_dataset_without_a_sampler_or_a_batch_ref(shared_stack: Stack, images: Path) -> None:
    dataset = SuperDataset(str(images), RECIPE)
    with pytest.raises(SuperError, match="SuperSampler"):
        len(dataset)
    with pytest.raises(SuperError, match="SuperSampler"):
        _ = dataset.classes
    with SuperSampler(dataset, batch_size=16, coordinator=shared_stack.address):
        for index in (0, slice(0, 4), [0, 1], None):
            with pytest.raises(UsageError, match="batch_size=None"):
                dataset[index]


def test_errors_cross_process_boundaries() -> None:
    for kind in (SourceNotFoundError, PlanError, CacheUnreachableError):
        error = pickle.loads(pickle.dumps(kind("the reason")))
        assert type(error) is kind
        assert str(error) == "the reason"
