"""Every fuzzer of this folder, for a moment each, and for minutes in ``make soak``; and what runs them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.hostile import fuzz
from tests.hostile.fuzz_wire import PARSERS

if TYPE_CHECKING:
    import random

FUZZERS = fuzz.fuzzers()
LONG_S = 180.0


@pytest.mark.parametrize("name", FUZZERS)
def test_a_moment_of(name):
    assert fuzz.run(name, FUZZERS[name], seconds=0.3, seed=0, inputs=3000) > 0


@pytest.mark.soak
@pytest.mark.timeout(3 * LONG_S)
@pytest.mark.parametrize("name", FUZZERS)
def test_minutes_of(name):
    seed = time.time_ns() // 1000
    inputs = fuzz.run(name, FUZZERS[name], seconds=LONG_S, seed=seed)
    print(f"{name}: {inputs} inputs from seed {seed} on")  # noqa: T201 # make soak shows it


@pytest.mark.parametrize("name", PARSERS)
def test_what_is_good_is_read(name):
    good, parse, _ = PARSERS[name]
    assert parse(good) is not None


def test_an_input_that_fails_is_found_again_by_its_seed(capsys, monkeypatch):
    tried = []

    def fails_sometimes(chance: random.Random) -> None:
        tried.append(chance.random())
        if tried[-1] < 0.01:
            raise ValueError("untyped")

    monkeypatch.setattr(fuzz.logging, "disable", lambda: None)
    monkeypatch.setattr(fuzz, "fuzzers", lambda: {"fails sometimes": fails_sometimes})
    assert fuzz.main(["--seed", "5"]) == 1
    said = capsys.readouterr()
    assert "1 fuzzers failed" in said.out
    assert "untyped" in said.err
    *_, alone = said.err.split("alone: python -m tests.hostile.fuzz ")
    failing, words = tried[-1], alone.splitlines()[0].replace("'fails sometimes'", "").split()
    assert fuzz.main([*words, "fails sometimes"]) == 1
    assert tried[-1] == failing
