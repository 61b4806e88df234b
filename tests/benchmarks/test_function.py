"""The function's benchmark measures what it says: real arms."""

from __future__ import annotations

import contextlib

import pytest

from benchmarks.function import BARE, S3, FunctionArm, run_arm
from benchmarks.harness.image_sets import Loading
from benchmarks.harness.processes import BenchmarkError
from benchmarks.harness.services import cache_server, s3_server
from tests.fixtures.images import images, write_images

__all__ = ["images"]


def loading(images):
    return Loading("images", str(images), 150, 32, 32)


@contextlib.contextmanager
def servers(images):
    with s3_server(images.parent) as store, cache_server() as cache:
        yield cache.address, store.environment


@pytest.mark.slow
def test_arms_produce_every_image_and_tell_the_cpu_of_their_threads(images):
    with servers(images) as (cache, environment):
        for way in (BARE, S3):
            spec = FunctionArm(way, loading(images), cache, cores=(0,), passes=1)
            result = run_arm(spec, environment)
            assert result.images == 150
            assert result.cpu_s > 0
            assert (result.fetch_cpu_s > 0) == (result.push_cpu_s > 0) == (way != BARE)
            assert result.fetch_cpu_s + result.push_cpu_s < result.cpu_s


@pytest.mark.slow
def test_an_arm_fails_where_an_image_cannot_be_decoded(tmp_path):
    directory = write_images(tmp_path / "images", 3)
    (directory / "ant" / "bad.jpg").write_bytes(b"no image")
    with servers(directory) as (cache, environment):
        arm = FunctionArm(S3, Loading("images", str(directory), 4, 32, 32), cache, cores=(0,), passes=1)
        with pytest.raises(BenchmarkError, match="not all was cached"):
            run_arm(arm, environment)
