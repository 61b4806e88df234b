"""The function's benchmark measures what it says: real arms."""

from __future__ import annotations

import contextlib

import pytest

from benchmarks.function_arm import BARE, FILES, S3, FunctionArmSpec, run_arm
from benchmarks.image_sets import Loading
from benchmarks.processes import BenchmarkError
from benchmarks.services import cache_server, s3_server
from tests.fixtures.images import images

__all__ = ["images"]


def loading(images):
    return Loading("images", str(images), 150, 32, 32)


@contextlib.contextmanager
def servers(images):
    with s3_server(images.parent) as store, cache_server() as cache:
        yield cache.address, store.environment


@pytest.mark.slow
def test_arms_produce_every_image_tell_the_cpu_of_their_threads_and_say_why_they_fail(images):
    with servers(images) as (cache, environment):
        for way in (BARE, FILES, S3):
            spec = FunctionArmSpec(way, loading(images), cache, cores=(0,), passes=1)
            result = run_arm(spec, environment)
            assert result.images == 150
            assert result.cpu_s > 0
            assert (result.fetch_cpu_s > 0) == (result.push_cpu_s > 0) == (way != BARE)
            assert result.fetch_cpu_s + result.push_cpu_s < result.cpu_s
        spec = FunctionArmSpec(S3, loading(images), cache, cores=(0,), passes=1)
        with pytest.raises(BenchmarkError, match="not all was cached.*403"):
            run_arm(spec, {**environment, "AWS_SECRET_ACCESS_KEY": "wrong"})
