"""Arms and trials as whole specs: what they inherit, what is refused by name, and in which order they run."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superdl.experiments.comparing.arms import arms_of, rounds_of
from superdl.experiments.spec import parse_spec
from superdl.super_wire.errors import ConfigError

ARMS = st.lists(st.text("abcdefgh", min_size=1, max_size=3), min_size=1, max_size=6, unique=True)


def spec_of(**sections):
    return parse_spec({"name": "study", "epochs": 4, "loader": {"batch_size": 8}, **sections})


def test_without_arms_super_is_compared_with_torch():
    arms = arms_of(spec_of())
    assert [arm.name for arm in arms] == ["super", "torch"]
    specs = [arm.trials[0].spec for arm in arms]
    assert [spec.loader.kind for spec in specs] == ["super", "torch"]
    assert [spec.name for spec in specs] == ["study-super", "study-torch"]
    assert all(spec.loader.batch_size == 8 and spec.epochs == 4 for spec in specs)
    assert all(spec.compare == parse_spec({}).compare and not spec.trials for spec in specs)


def test_trials_lie_over_the_arm_which_lies_over_the_spec():
    arms = arms_of(
        spec_of(
            compare={"arms": {"one": {"loader.batch_size": 16, "optimizer.lr": 0.1}}},
            trials={"a": {}, "b": {"loader.batch_size": 32, "epochs": 2}},
        )
    )
    a, b = (trial.spec for trial in arms[0].trials)
    assert (a.name, a.loader.batch_size, a.epochs, a.optimizer.lr) == ("study-one-a", 16, 4, 0.1)
    assert (b.name, b.loader.batch_size, b.epochs, b.optimizer.lr) == ("study-one-b", 32, 2, 0.1)


def test_trials_share_services_only_where_functions_run_and_nobody_names_a_coordinator():
    trials = {"a": {}, "b": {"loader.batch_size": 4}}
    shared, plain = arms_of(spec_of(trials=trials))
    assert (shared.sharing, plain.sharing) == (shared.trials[0].spec, None)
    alone, _ = arms_of(spec_of())
    assert alone.sharing is None
    named, _ = arms_of(spec_of(trials=trials, loader={"coordinator": "host:50051"}))
    assert named.sharing is None


def test_how_functions_run_is_no_matter_of_an_arm_without_functions():
    _, plain = arms_of(spec_of(executor="workers"))
    assert plain.trials[0].spec.executor == "auto"
    _, plain = arms_of(spec_of(loader={"coordinator": "host:50051"}))
    assert plain.trials[0].spec.loader.coordinator is None


def test_chosen_arms_are_those_of_the_spec_or_loaders():
    spec = spec_of(compare={"arms": {"wide": {"loader.batch_size": 64}, "torch": {"loader.kind": "torch"}}})
    assert [arm.name for arm in arms_of(spec, ["torch", "wide"])] == ["torch", "wide"]
    (threads,) = arms_of(spec, ["super-threads"])
    assert threads.trials[0].spec.loader.kind == "super-threads"


ARM = "compare.arms.a: "


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"loader.kindd": "torch"}, f"{ARM}unknown key loader.kindd"),
        ({"loader.kind": "tf"}, f"{ARM}loader.kind must be one of"),
        ({"output": "x"}, f"{ARM}output is what the comparison"),
        ({"compare.repeats": 1}, f"{ARM}compare.repeats is what"),
        ({"loader": {"kind": "torch"}}, "write dotted keys, as in loader.kind:"),
        ({"launch": 3}, f"{ARM}launch is a command .* not 3"),
        ({"launch": "torchrun '"}, f"{ARM}launch is a command .*No closing quotation"),
        ({"loader": 3}, f"{ARM}loader must be a mapping"),
        ({"epochs": 1}, rf"{ARM}of 1 epoch\(s\), compare.warmup_epochs=1"),
    ],
)
def test_what_an_arm_may_not_set_is_refused_by_name(sections, message):
    with pytest.raises(ConfigError, match=message):
        arms_of(spec_of(compare={"arms": {"a": sections}}))


@pytest.mark.parametrize(
    ("sections", "chosen", "message"),
    [
        (
            {"trials": {"t": {"loader.batch_size": 0}}},
            None,
            r"trials.t in compare.arms.super: loader.batch_size",
        ),
        ({"trials": {"t": {"name": "x"}}}, None, r"trials.t: name is what the comparison decides"),
        (
            {"trials": {"t": {"executor": "local"}, "u": {}}},
            None,
            r"compare.arms.super: its trials share one",
        ),
        (
            {"trials": {"t": {}, "u": {}}, "compare": {"arms": {"a": {"launch": "torchrun"}}}},
            None,
            r"compare.arms.a: launch starts one run, and this spec has trials",
        ),
        ({}, ["supper"], r"--arms names 'supper'.*there are super, torch, super-threads"),
        ({}, ["torch", "torch"], r"--arms names each arm once"),
        ({}, [""], r"--arms names ''"),
    ],
)
def test_what_is_refused_says_where_it_stands(sections, chosen, message):
    with pytest.raises(ConfigError, match=message):
        arms_of(spec_of(**sections), chosen)


@given(ARMS, st.integers(1, 12))
def test_arms_are_interleaved_and_every_repeat_has_every_arm_once(arms, repeats):
    rounds = rounds_of(arms, repeats)
    assert [one.number for one in rounds] == list(range(1, len(arms) * repeats + 1))
    assert [one.repeat for one in rounds] == [at // len(arms) + 1 for at in range(len(rounds))]
    for repeat in range(1, repeats + 1):
        assert sorted(one.arm for one in rounds if one.repeat == repeat) == sorted(arms)


@given(ARMS, st.integers(1, 12))
def test_no_arm_has_one_place_more_than_once_more_than_another(arms, repeats):
    rounds = rounds_of(arms, repeats)
    for place in range(len(arms)):
        there = Counter(rounds[repeat * len(arms) + place].arm for repeat in range(repeats))
        counts = [there[arm] for arm in arms]
        assert max(counts) - min(counts) <= 1
