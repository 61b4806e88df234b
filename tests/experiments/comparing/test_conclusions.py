"""What figures allow to be said: of spreads, of arms that ran differently often, of rounds that failed."""

from __future__ import annotations

import pytest

from superdl.experiments.comparing.arms import Round
from superdl.experiments.comparing.comparison import ArmReport, Comparison, RoundReport
from superdl.experiments.comparing.conclusions import conclusions, difference_of, probability_of_apart
from superdl.experiments.comparing.figures import FIGURES, Spread
from superdl.experiments.comparing.show import comparison_page
from tests.fixtures.pages import read_page


@pytest.mark.parametrize(
    ("first", "second", "ratio", "apart"),
    [
        ((1.0, 2.0), (2.0, 3.0), 1.5 / 2.5, False),  # ranges that touch are not apart
        ((1.0, 1.9), (2.0, 3.0), 1.45 / 2.5, True),
        ((4.0, 4.9), (3.0, 1.0, 2.0), 4.45 / 2.0, True),
        ((1.0,), (2.0, 3.0), 1.0 / 2.5, None),
        ((1.0, 1.0), (0.0, 0.0), None, True),
    ],
)
def test_arms_differ_where_their_ranges_lie_apart(first, second, ratio, apart):
    difference = difference_of(Spread(first), Spread(second))
    assert (difference.ratio, difference.apart) == (ratio and pytest.approx(ratio), apart)


def test_the_probability_of_ranges_apart_is_counted_from_orders():
    # of 6 orders of aabb, aabb and bbaa have the arms apart
    assert probability_of_apart(2, 2) == pytest.approx(2 / 6)
    assert probability_of_apart(3, 3) == pytest.approx(2 / 20)
    assert probability_of_apart(1, 1) == 1.0


def said(rates: dict[str, tuple[float, ...]], **options: object) -> dict[str, str]:
    """The points on arms of which the throughput alone is known."""
    spreads = {figure.key: dict.fromkeys(rates) for figure in FIGURES}
    spreads["images_per_s"] = {name: Spread(values) for name, values in rates.items()}
    return dict(conclusions(spreads, 1, **options))  # type: ignore[arg-type]  # as conclusions has them


def test_the_arm_that_ran_once_is_named():
    points = said({"a": (10.0, 11.0), "b": (20.0,)})
    assert points["Throughput:"].endswith("; b ran once, so nobody knows the spread.")
    assert points["Chance:"].startswith("b ran once; run more repeats")
    assert points["Warm-up:"].endswith("of the whole run alone."), "there is none of these here"
    assert "; each ran once" in said({"a": (10.0,), "b": (20.0,)})["Throughput:"]


def test_chance_is_told_of_as_many_repeats_as_there_were():
    assert (
        "of 3 repeats each lie apart in one figure of 10 "
        in said({"a": (1, 1, 1), "b": (2, 2, 2)})["Chance:"]
    )
    unequal = said({"a": (1, 1, 1), "b": (2, 2, 2, 2), "c": (3, 3)})["Chance:"]
    assert "of 3 and 2 repeats lie apart in one figure of 5 " in unequal
    assert (
        "of 3 and 4 repeats lie apart in one figure of 18 "
        in said({"a": (1, 1, 1), "b": (2,) * 4})["Chance:"]
    )


def test_a_near_tie_makes_no_arm_the_better_one():
    assert said({"a": (100.0, 100.0), "b": (100.2, 100.2)})["Throughput:"].endswith(
        ": equal to three digits."
    )
    assert "times as fast" in said({"a": (100.0, 100.0), "b": (102.0, 102.0)})["Throughput:"]


def comparison(*rounds: RoundReport, trials: tuple[str, ...] = (), status: str = "finished") -> Comparison:
    names = dict.fromkeys(one.round.arm for one in rounds)
    arms = tuple(ArmReport(name, trials=trials) for name in names)
    return Comparison("c", status, None, "today", 1.0, "", 2, 1, arms, rounds, (), {})


def test_rounds_that_failed_are_told():
    lost = RoundReport(Round(1, 1, "a"), "", None, "the run of a, repeat 1 ended with exit code 1")
    points = dict(comparison(lost, RoundReport(Round(2, 1, "b"), "", None, "it did too")).words())
    assert points["Failed:"] == "rounds that failed are in no figure: 1 of a, 1 of b."
    assert "Failed:" not in dict(comparison().words())


def test_the_cost_of_trials_at_once_is_said_to_have_the_warmup_in_it():
    one = RoundReport(Round(1, 1, "a"), "", None, None)
    assert "usd_per_epoch" in comparison(one, trials=("x", "y")).of_whole_runs
    assert "usd_per_epoch" not in comparison(one).of_whole_runs
    rates = {"a": (1.0,), "b": (2.0,)}
    spreads = {figure.key: {name: Spread(values) for name, values in rates.items()} for figure in FIGURES}
    whole = comparison(one, trials=("x", "y")).of_whole_runs
    assert " alone: cost, decodes, " in dict(conclusions(spreads, 1, whole=whole))["Warm-up:"]


def test_found_runs_have_as_many_rounds_as_runs():
    rounds = [RoundReport(Round(at, at, "a"), "", None, None) for at in (1, 2)]
    found = comparison(*rounds, RoundReport(Round(3, 1, "b"), "", None, None))
    assert "0 of 3 rounds measured" in read_page(comparison_page(found)).text
