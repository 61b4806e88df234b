"""Figures of rounds, checked by hand."""

import pytest

from superdl.experiments.comparing.figures import FIGURES, Spread, round_figures, winner
from tests.experiments.comparing.reports import measured, one_pass, run_of

PASSES = (
    one_pass(wall_s=10.0, wait_s=9.0, first_batch_s=3.0, produced=100),
    one_pass(wall_s=2.0, wait_s=0.5),
    one_pass(wall_s=3.0, wait_s=0.75),
)
ALONE = run_of(
    *PASSES,
    vals=(
        one_pass(samples=50, produced=50),
        one_pass(samples=50, accuracy=0.75),
        one_pass(samples=50, accuracy=0.625),
    ),
    phases=(
        (None, 4.0, {"trainer": 2.0, "coordinator": 1.0}),
        (0, 10.0, {"trainer": 5.0, "functions": 6.0}),
        (0, 1.0, {"trainer": 1.0}),
        (1, 2.0, {"trainer": 1.5, "workers": 0.3}),
        (1, 1.0, {"trainer": 0.5}),
        (2, 3.0, {"trainer": 1.5, "workers": 0.3}),
        (2, 1.0, {"trainer": 0.4}),
    ),
)


def test_a_single_run_after_its_warmup():
    alone = measured(ALONE, wall_s=30.0, cpu_s=25.0, services_start_s=2.5)
    figures = round_figures(alone, warmup_epochs=1)
    assert figures.images_per_s == pytest.approx(200 / 5.0)
    assert figures.step_ms == pytest.approx(1000 * 5.0 / 8)
    assert figures.accuracy == 0.75
    assert figures.wait_percent == pytest.approx(100 * 1.25 / 5.0)
    # 4.5 s of CPU for 200 training and 100 validation images
    assert figures.cpu_ms_per_image == pytest.approx(1000 * 4.5 / 300)
    assert figures.outside_ms_per_image == pytest.approx(1000 * 0.6 / 300)
    assert figures.cpu_ms_by_group == pytest.approx({"trainer": 13.0, "workers": 2.0})
    assert figures.decodes_per_image == 1.0
    assert figures.first_batch_s == pytest.approx(2.5 + 4.0 + 3.0)
    assert (figures.wall_s, figures.cpu_s) == (30.0, 25.0)


def test_concurrent_runs_share_decodes_and_add_up():
    first, second = (
        run_of(
            one_pass(produced=produced, wall_s=wall_s), one_pass(wall_s=wall_s), images=(100, 0), ends=ends
        )
        for produced, wall_s, ends in (
            (70, 1.0, {-1: 50.0, 0: 51.0, 1: 52.0}),
            (30, 4.0, {-1: 48.0, 0: 52.0, 1: 56.0}),
        )
    )
    figures = round_figures(measured(first, second), warmup_epochs=1)
    assert figures.decodes_per_image == 1.0
    # From the end of the first warm-up to the last end.
    assert figures.images_per_s == pytest.approx(200 / (56 - 51))
    assert figures.wait_percent == pytest.approx(100 * 1.0 / 5.0)
    whole = round_figures(measured(first, second), warmup_epochs=0)
    assert whole.images_per_s == pytest.approx(400 / (56 - 48))
    plain = run_of(one_pass(produced=100), one_pass(produced=100), images=(100, 0))
    assert round_figures(measured(*(plain,) * 8), 0).decodes_per_image == 16.0


def test_shared_services_count_once_over_whole_rounds():
    runs = (run_of(one_pass(), one_pass(), phases=((1, 2.0, {"trainer": 1.0}),)),) * 2
    services = {"cache": 5.0, "functions": 7.0}
    shared = measured(*runs, cpu_s=14.0, services_cpu_s=services)
    figures = round_figures(shared, warmup_epochs=0)
    assert figures.cpu_ms_by_group == pytest.approx({"trainer": 5.0, "cache": 12.5, "functions": 17.5})
    warm = round_figures(shared, warmup_epochs=1)
    assert (warm.cpu_ms_by_group, warm.cpu_ms_per_image, warm.outside_ms_per_image) == ({}, None, None)
    assert warm.cpu_s == 14.0


@pytest.mark.parametrize(
    ("key", "values", "best"),
    [
        ("images_per_s", {"a": (10.0, 11.0), "b": (20.0, 21.0)}, ("b", pytest.approx(20.5 / 10.5))),
        (
            "wait_percent",
            {"a": (10.0, 11.0), "b": (20.0, 21.0), "c": None},
            ("a", pytest.approx(20.5 / 10.5)),
        ),
        ("wait_percent", {"a": (0.0, 0.0), "b": (20.0, 21.0)}, ("a", None)),
        ("wait_percent", {"a": (0.0,), "b": (0.0,)}, None),
        ("images_per_s", {"a": (10.0, 30.0), "b": (20.0, 21.0)}, None),
        ("images_per_s", {"a": (10.0, 20.0), "b": (20.0, 30.0)}, None),  # touching ranges overlap
        ("images_per_s", {"a": (100.0,), "b": (100.2,)}, None),
    ],
)
def test_a_figure_has_a_winner_unless_ranges_overlap(key, values, best):
    (figure,) = [figure for figure in FIGURES if figure.key == key]
    assert winner(figure, {name: each and Spread(each) for name, each in values.items()}) == best
