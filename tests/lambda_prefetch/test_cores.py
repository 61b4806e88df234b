"""A function decodes with as many threads as it has cores of its own, or as its operator says."""

from __future__ import annotations

import os

import pytest

from superdl.lambda_prefetch.settings import decoding_threads


@pytest.mark.parametrize(
    ("memory_mb", "cores", "threads"),
    [
        ("128", 2, 1),
        ("1769", 2, 1),
        ("1770", 2, 2),
        ("3538", 6, 2),
        ("10240", 6, 6),
        ("10240", 2, 2),
        ("10240", 1, 1),
        ("", 6, 1),
        ("much", 6, 1),
    ],
)
def test_lambdas_memory_and_the_usable_cores_decide(memory_mb, cores, threads, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    assert decoding_threads(0, {"AWS_LAMBDA_FUNCTION_MEMORY_SIZE": memory_mb}) == threads


def test_elsewhere_one_thread_decodes(monkeypatch):
    monkeypatch.delenv("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", raising=False)
    assert decoding_threads(0) == 1


def test_the_operator_is_believed():
    assert decoding_threads(7, {"AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "128"}) == 7
