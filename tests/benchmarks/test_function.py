"""The function's benchmark measures what it says: real arms, the bundle's weight, dollars that add up."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import pytest

from benchmarks import function
from benchmarks.cache_server import cache_server
from benchmarks.errors import BenchmarkError
from benchmarks.function_arm import (
    BARE,
    FILES,
    S3_BOTO3,
    S3_LEAN,
    FunctionArmResult,
    FunctionArmSpec,
    run_arm,
    s3_event,
)
from benchmarks.function_bundle import bundle_sizes, cold_start_s
from benchmarks.object_server import object_server
from tests.fixtures.images import images

__all__ = ["images"]


@contextlib.contextmanager
def servers(images):
    with (
        tempfile.TemporaryDirectory(prefix="super-t-") as place,
        object_server(images.parent) as objects,
        cache_server(Path(place)) as (socket, _),
    ):
        yield f"unix://{socket}", objects.environment


def test_arms_produce_every_image_and_tell_the_cpu_of_their_threads(images):
    with servers(images) as (cache, environment):
        for way in (BARE, FILES, S3_LEAN, S3_BOTO3):
            spec = FunctionArmSpec(way, str(images), 32, 32, cache, cores=(0,), passes=1)
            result = run_arm(spec, environment)
            assert (result.images, result.invocations) == (150, 0 if way == BARE else 1)
            assert result.cpu_s > 0
            assert (result.fetch_cpu_s > 0) == (result.push_cpu_s > 0) == (way != BARE)
            assert result.fetch_cpu_s + result.push_cpu_s < result.cpu_s


def test_an_arm_that_fails_says_why(images):
    with servers(images) as (cache, environment):
        spec = FunctionArmSpec(S3_LEAN, str(images), 32, 32, cache, cores=(0,), passes=1)
        with pytest.raises(BenchmarkError, match="not all was cached.*403"):
            run_arm(spec, {**environment, "AWS_SECRET_ACCESS_KEY": "wrong"})


def test_the_bundle_stays_below_30_mb():
    sizes = bundle_sizes()
    assert {"numpy", "pillow", "xxhash", "super"} <= set(sizes)
    assert not {"torch", "grpcio", "boto3", "botocore"} & set(sizes)
    assert sum(sizes.values()) < 30e6


def test_a_cold_start_is_one_that_answers(images):
    with servers(images) as (cache, environment):
        event = s3_event(str(images), 32, 32, cache, count=1)
        assert cold_start_s(event, environment, rounds=1) > 0
        with pytest.raises(BenchmarkError, match="the cold function said"):
            cold_start_s({**event, "expires_at": 0.0}, environment, rounds=1)


def test_dollars_are_memory_for_as_long_as_it_took_an_invocation_and_a_get():
    bare, measured = (FunctionArmResult(1000, 1, wall_s, 1.0, 0.2, 0.1) for wall_s in (1.0, 2.0))
    figures = function._figures([measured], [bare], 1, S3_LEAN)
    assert figures["images_per_s"] == 500
    assert figures["share_of_bare"] == 0.5
    assert figures["decode_cpu_ms_per_image"] == pytest.approx(0.7)
    compute = 1e6 * 0.002 * 1769 / 1024 * 1.33334e-5
    assert figures["usd_compute_per_million"] == pytest.approx(compute)
    assert figures["usd_per_million"] == pytest.approx(compute + 1e6 * (2e-7 / 64 + 4e-7))
    assert function._figures([measured], [bare], 1, FILES)["usd_per_million"] < figures["usd_per_million"]
    assert function._figures([bare], [bare], 1, BARE)["share_of_bare"] is None
