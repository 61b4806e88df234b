"""A cause that repeats itself is one line at once, and one a minute with its count."""

from __future__ import annotations

import io
import logging

import pytest

from superdl.coordinator.server.repeated_lines import RepeatedLines


@pytest.fixture
def log():
    """A logger that writes as the coordinator does, its lines so far, and its clock's hands."""
    stream, hands = io.StringIO(), [1000.0]
    logger = logging.getLogger("test.repeated")
    logger.propagate, logger.handlers = False, [RepeatedLines(stream, clock=lambda: hands[0])]
    logger.setLevel(logging.INFO)
    return logger, lambda: stream.getvalue().splitlines(), hands


def refuse(logger, number):
    logger.warning("request %s to %s failed: %s", f"{number}-0a1b2c3d", "lambda", f"429 after 0.{number} s")


def test_hundreds_of_refusals_are_one_line_a_minute_with_their_count(log):
    logger, lines, hands = log
    for number in range(871):
        refuse(logger, number)
    logger.warning("something else")
    assert len(lines()) == 2
    hands[0] += 60.0
    refuse(logger, 871)
    assert lines()[2].startswith("request 871-0a1b2c3d to lambda failed")
    assert lines()[2].endswith("(870 times more since it was last told)")
    hands[0] += 60.0
    refuse(logger, 872)
    assert "times more" not in lines()[3]


def test_causes_that_differ_in_words_are_told_apart_and_information_is_not_held_back(log):
    logger, lines, _ = log
    for name in ("lambda", "ray", "local"):
        logger.error("the executor %s is gone", name)
    for _ in range(5):
        logger.info("serving")
    assert len(lines()) == 8


def test_a_stranger_s_words_make_no_lines_and_causes_are_bounded(log):
    logger, lines, _ = log
    for word in ("one", "another", "\x1b[2J"):
        logger.warning("a report is skipped: %s", word, extra={"cause": "unreadable report"})
    assert len(lines()) == 1
    for number in range(300):
        logger.warning("cause %s", "x" * number)
    assert len(logger.handlers[0]._told) <= 256
