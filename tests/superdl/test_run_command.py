"""``superdl run``: a spec's keys are options too, as services hand hyper-parameters on."""

from __future__ import annotations

import argparse

import pytest

from superdl import run_command


def spec_of(*words):
    parser = argparse.ArgumentParser()
    run_command.add_arguments(parser)
    return run_command.spec_of(parser.parse_args(["digits", *words]), {})


def test_keys_are_options_in_the_order_of_the_command_line():
    spec = spec_of(
        "--epochs", "25", "--set", "loader.batch_size=8", "--batch-size=16", "--optimizer.lr", "1e-4"
    )
    assert (spec.epochs, spec.loader.batch_size, spec.optimizer.lr) == (25, 16, 1e-4)
    assert spec_of("--lr", "0.25", "--lr", "0.5").optimizer.lr == 0.5
    assert spec_of("--data.kind", "tiny-imagenet").data.kind == "tiny-imagenet"


@pytest.mark.parametrize("words", [["--kind", "torch"], ["--epoch.s", "3"]])
def test_a_name_that_is_no_key_or_of_two_sections_is_refused(words, capsys):
    with pytest.raises(SystemExit):
        spec_of(*words)
    assert "unrecognized arguments" in capsys.readouterr().err
