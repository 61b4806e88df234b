"""Runs the fuzzers of this folder: ``python -m tests.hostile.fuzz [--seconds S] [--seed N] [NAME ...]``.

Each file ``fuzz_*.py`` here has ``FUZZERS``, by name: a callable makes one input of the chance it is given,
tries it, and raises where the outcome is none that it may have.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import random
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

Fuzzer = Callable[[random.Random], None]
_HERE = Path(__file__).parent
_MOST = 10**12


class InputFailedError(AssertionError):
    """An input had an outcome that it may not have; the message says how to try it again alone."""


def fuzzers():
    """All there are, by name."""
    found = {}
    for path in sorted(_HERE.glob("fuzz_*.py")):
        for name, fuzzer in importlib.import_module(f"tests.hostile.{path.stem}").FUZZERS.items():
            assert name not in found, f"two fuzzers have the name {name}"
            found[name] = fuzzer
    return found


def run(name, fuzzer, *, seconds, seed, inputs=_MOST):
    """Try inputs with the seeds from ``seed`` on, for a time or a number of them; how many were tried."""
    end_s = time.monotonic() + seconds
    for tried in range(inputs):
        try:
            fuzzer(random.Random(f"{name}/{seed + tried}"))
        except Exception as error:
            alone = f"python -m tests.hostile.fuzz --seed {seed + tried} --inputs 1 '{name}'"
            msg = f"{name}: input {tried + 1} of seed {seed + tried} failed; alone: {alone}"
            raise InputFailedError(msg) from error
        if time.monotonic() > end_s:
            return tried + 1
    return inputs


def main(arguments=None):
    """Parse the command line, run, and tell of each fuzzer; 1 if one failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.fuzz", description="Run fuzzers.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="of a fuzzer (all)")
    parser.add_argument("--seconds", type=float, default=10.0, help="for each fuzzer (10)")
    parser.add_argument("--seed", type=int, default=None, help="of the first input (the time)")
    parser.add_argument("--inputs", type=int, default=_MOST, help="at most, for each fuzzer")
    given = parser.parse_args(arguments)
    every = fuzzers()
    unknown = set(given.names) - set(every)
    if unknown:
        parser.error(f"no fuzzer is named {', '.join(sorted(unknown))}; there are {', '.join(every)}")
    logging.disable()  # what is refused is logged, a thousand times a second
    seed = time.time_ns() // 1000 if given.seed is None else given.seed
    tried = failed = 0
    for name in given.names or every:
        try:
            count = run(name, every[name], seconds=given.seconds, seed=seed, inputs=given.inputs)
        except InputFailedError as error:
            failed += 1
            traceback.print_exception(error)
        else:
            tried += count
            sys.stdout.write(f"{name}: {count} inputs from seed {seed} on\n")
        sys.stdout.flush()
    sys.stdout.write(f"{tried} inputs tried, {failed} fuzzers failed\n")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
