"""What figures allow to be said: of spreads, of arms that ran differently often, of rounds that failed."""

from __future__ import annotations

import pytest

from superdl.experiments.comparing.comparison import ArmReport, Comparison, RoundReport
from superdl.experiments.comparing.figures import (
    FIGURES,
    Spread,
    are_apart,
    conclusions,
    probability_of_apart,
    winner,
)
from superdl.experiments.comparing.show import comparison_page
from tests.fixtures.pages import read_page


@pytest.mark.parametrize(
    ("first", "second", "apart"),
    [
        ((1.0, 2.0), (2.0, 3.0), False),  # ranges that touch are not apart
        ((1.0, 1.9), (2.0, 3.0), True),
        ((4.0, 4.9), (3.0, 1.0, 2.0), True),
        ((1.0,), (2.0, 3.0), None),
    ],
)
def test_arms_differ_where_their_ranges_lie_apart(first, second, apart):
    assert are_apart(Spread(first), Spread(second)) is apart


def test_the_probability_of_ranges_apart_is_counted_from_orders():
    # of 6 orders of aabb, aabb and bbaa have the arms apart
    assert probability_of_apart(2, 2) == pytest.approx(2 / 6)
    assert probability_of_apart(3, 3) == pytest.approx(2 / 20)
    assert probability_of_apart(1, 1) == 1.0


def said(key: str = "images_per_s", **values: tuple[float, ...]) -> dict[str, str]:
    """The points on arms of which one figure is known."""
    spreads = {figure.key: dict.fromkeys(values) for figure in FIGURES}
    spreads[key] = {name: Spread(each) for name, each in values.items()}
    return dict(conclusions(spreads, 1))


def test_the_arm_that_ran_once_is_named():
    points = said(a=(10.0, 11.0), b=(20.0,))
    assert points["Chance:"].startswith("b ran once, so the spread is unknown")


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
        ("images_per_s", {"a": (100.0,), "b": (100.2,)}, None),
        ("images_per_s", {"a": (100.0,), "b": None}, None),
    ],
)
def test_a_row_has_a_winner_where_the_ranges_lie_apart(key, values, best):
    (figure,) = [one for one in FIGURES if one.key == key]
    spreads = {name: each and Spread(each) for name, each in values.items()}
    assert winner(figure, spreads) == best


@pytest.mark.parametrize(
    ("repeats", "words"),
    [
        ({"a": 3, "b": 3}, "of 3 and 3 repeats lie apart in one figure of 10 "),
        ({"a": 3, "b": 4, "c": 2}, "of 3 and 2 repeats lie apart in one figure of 5 "),
        ({"a": 3, "b": 4}, "of 3 and 4 repeats lie apart in one figure of 18 "),
    ],
)
def test_chance_is_told_of_as_many_repeats_as_there_were(repeats, words):
    assert words in said(**{name: (1.0,) * times for name, times in repeats.items()})["Chance:"]


def comparison(*rounds: RoundReport, trials: tuple[str, ...] = ()) -> Comparison:
    arms = [ArmReport(name, trials=list(trials)) for name in dict.fromkeys(one.arm for one in rounds)]
    return Comparison("c", "today", "", 2, 1, arms, list(rounds), status="finished")


def test_rounds_that_failed_are_told_and_counted():
    lost = RoundReport(1, 1, "a", "", None, "the run of a, repeat 1 ended with exit code 1")
    whole = comparison(lost, RoundReport(2, 1, "b", "", None, "it did too"))
    assert dict(whole.words())["Failed:"] == "rounds that are in no figure: 1 of a, 1 of b."
    assert "Failed:" not in dict(comparison().words())
    page = read_page(comparison_page(whole)).text
    assert "0 of 2 rounds measured" in page
    assert "it did too" in page


def test_the_cost_of_trials_at_once_is_said_to_have_the_warmup_in_it():
    one = RoundReport(1, 1, "a", "", None)
    whole = comparison(one, trials=("x", "y")).of_whole_runs
    assert whole - comparison(one).of_whole_runs == {"usd_per_epoch"}
    spreads = {figure.key: {"a": Spread((1.0,)), "b": Spread((2.0,))} for figure in FIGURES}
    assert " of the whole run: cost, decodes, " in dict(conclusions(spreads, 1, whole=whole))["Warm-up:"]
