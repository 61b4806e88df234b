"""What is learnt from answers: the line over the number of samples, the quantiles, the overhead."""

from __future__ import annotations

import random

import pytest

from superdl.coordinator.core.timing import LatencyModel


def taught(
    answers: int = 200, *, fixed_s=0.02, sample_s=0.005, around_s=0.01, sizes=(4, 16, 64)
) -> LatencyModel:
    model = LatencyModel()
    for number in range(answers):
        samples = sizes[number % len(sizes)]
        duration_s = fixed_s + sample_s * samples
        model.observe(samples, duration_s + around_s, duration_s)
    return model


def test_before_the_first_answer_nothing_is_known():
    model = LatencyModel()
    assert (model.sample_s, model.invocation_s, model.expected_s(8)) == (0.0, 0.0, 0.0)
    assert model.quantile_s(8, 0.99) is None


def test_the_line_over_the_number_of_samples_is_found():
    model = taught()
    assert model.sample_s == pytest.approx(0.005)
    assert model.expected_s(100) == pytest.approx(0.02 + 0.5 + 0.01)
    assert model.invocation_s == pytest.approx(0.03)


def test_with_one_size_alone_all_time_is_the_samples():
    model = taught(sizes=(10,))
    assert model.sample_s == pytest.approx(0.007)
    assert model.expected_s(20) == pytest.approx(0.15)


def test_a_quantile_tells_how_long_the_slow_ones_take_for_any_size():
    model, rng = LatencyModel(), random.Random(1)
    for _ in range(256):
        samples = rng.choice((8, 32))
        model.observe(samples, samples * 0.01 * (5.0 if rng.random() < 0.1 else 1.0), samples * 0.01)
    mean_s, slow_s = model.expected_s(100), model.quantile_s(100, 0.99)
    assert slow_s > 2.5 * mean_s
    assert model.quantile_s(100, 0.5) < mean_s
    assert model.quantile_s(50, 0.99) < slow_s


def test_a_queue_that_comes_and_goes_is_no_overhead_of_an_invocation():
    model = LatencyModel()
    for number in range(60):
        model.observe(10, 0.1 + (0.5 if number % 2 else 0.002), 0.1)
    assert model.invocation_s < 0.01
    assert model.expected_s(10) > 0.2


def test_old_answers_fade():
    model = taught(sample_s=0.001)
    for number in range(400):
        samples = (4, 16, 64)[number % 3]
        model.observe(samples, 0.02 + samples * 0.01, 0.02 + samples * 0.01)
    assert model.sample_s == pytest.approx(0.01, rel=0.02)


def test_an_answer_that_names_no_duration_counts_whole():
    model = LatencyModel()
    model.observe(10, 0.5, 0.0)
    assert model.expected_s(10) == pytest.approx(0.5)
