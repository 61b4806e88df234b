"""Arms and trials as whole specs: what they inherit, and what is refused before anything runs, by name."""

from __future__ import annotations

import pytest

from superdl.experiments.comparing.arms import arms_of
from superdl.experiments.spec import parse_spec
from superdl.super_wire.errors import ConfigError


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
    _, plain = arms_of(spec_of(executor="ray"))
    assert plain.trials[0].spec.executor == "auto"
    _, plain = arms_of(spec_of(loader={"coordinator": "host:50051"}))
    assert plain.trials[0].spec.loader.coordinator is None


def test_chosen_arms_are_those_of_the_spec_or_loaders():
    spec = spec_of(compare={"arms": {"wide": {"loader.batch_size": 64}, "torch": {"loader.kind": "torch"}}})
    assert [arm.name for arm in arms_of(spec, ["torch", "wide"])] == ["torch", "wide"]
    (threads,) = arms_of(spec, ["super-threads"])
    assert threads.trials[0].spec.loader.kind == "super-threads"


@pytest.mark.parametrize(
    ("sections", "chosen", "message"),
    [
        (
            {"compare": {"arms": {"a": {"loader.kindd": "torch"}}}},
            None,
            r"compare.arms.a: unknown key loader.kindd",
        ),
        (
            {"compare": {"arms": {"a": {"loader.kind": "tf"}}}},
            None,
            r"compare.arms.a: loader.kind must be one of",
        ),
        (
            {"compare": {"arms": {"a": {"output": "x"}}}},
            None,
            r"compare.arms.a: output is what the comparison",
        ),
        (
            {"compare": {"arms": {"a": {"compare.repeats": 1}}}},
            None,
            r"compare.arms.a: compare.repeats is what",
        ),
        (
            {"compare": {"arms": {"a": {"loader": {"kind": "torch"}}}}},
            None,
            r"write dotted keys, as in loader.kind:",
        ),
        ({"compare": {"arms": {"a": {"loader": 3}}}}, None, r"compare.arms.a: loader must be a mapping"),
        (
            {"compare": {"arms": {"a": {"epochs": 1}}}},
            None,
            r"compare.arms.a: of 1 epoch\(s\), compare.warmup_epochs=1",
        ),
        (
            {"trials": {"t": {"loader.batch_size": 0}}},
            None,
            r"trials.t in compare.arms.super: loader.batch_size",
        ),
        ({"trials": {"t": {"name": "x"}}}, None, r"trials.t: name is what the comparison decides"),
        ({"trials": {"t": {"executor": "ray"}, "u": {}}}, None, r"compare.arms.super: its trials share one"),
        ({}, ["supper"], r"--arms names 'supper'.*there are super, torch, super-threads"),
        ({}, ["torch", "torch"], r"--arms names each arm once"),
        ({}, [""], r"--arms names ''"),
    ],
)
def test_what_is_refused_says_where_it_stands(sections, chosen, message):
    with pytest.raises(ConfigError, match=message):
        arms_of(spec_of(**sections), chosen)
