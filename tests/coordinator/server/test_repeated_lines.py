"""A cause that repeats itself is one line at once, and one a minute with its count."""

from __future__ import annotations

import io
import logging

import pytest

from superdl.coordinator.server.repeated_lines import RepeatedLines


class Timers:
    """Timers that go off when the test says so."""

    def __init__(self):
        self.calls = []

    def __call__(self, delay_s, call):
        self.calls.append(call)
        return self

    def cancel(self):
        pass

    def minute(self):
        calls, self.calls = self.calls, []
        for call in calls:
            call()


@pytest.fixture
def log():
    """A logger that writes as the coordinator does, its text, and its clock."""
    stream, timers = io.StringIO(), Timers()
    handler = RepeatedLines(stream, after=timers)
    logger = logging.getLogger("test.repeated")
    logger.propagate, logger.handlers = False, [handler]
    yield logger, stream, timers
    handler.close()


def refuse(logger, number):
    logger.warning(
        "request %s to %s failed: %s",
        f"{number}-0a1b2c3d",
        "lambda",
        f"429 after 0.{number} s, Rate Exceeded",
    )


def test_hundreds_of_refusals_are_two_lines_with_their_count(log):
    logger, stream, timers = log
    for number in range(871):
        refuse(logger, number)
    logger.warning("something else")
    assert stream.getvalue().count("Rate Exceeded") == 1
    timers.minute()
    assert stream.getvalue().count("\n") == 3
    assert "request 870-0a1b2c3d to lambda failed" in stream.getvalue()
    assert "(870 times more within 60 s)" in stream.getvalue()


def test_what_goes_on_is_told_each_minute_and_what_has_ended_is_forgotten(log):
    logger, stream, timers = log
    for _ in range(3):
        refuse(logger, 1)
        refuse(logger, 2)
        timers.minute()
    assert stream.getvalue().count("times more") == 3
    timers.minute()
    refuse(logger, 3)
    assert stream.getvalue().endswith("Rate Exceeded\n")


def test_causes_that_differ_in_words_are_told_apart_and_information_is_not_held_back(log):
    logger, stream, _ = log
    logger.setLevel(logging.INFO)
    for name in ("lambda", "ray", "local"):
        logger.error("the executor %s is gone", name)
    for _ in range(5):
        logger.info("serving")
    assert stream.getvalue().count("\n") == 8


def test_the_end_tells_what_was_counted_and_causes_are_bounded(log):
    logger, stream, _ = log
    refuse(logger, 1)
    refuse(logger, 2)
    for number in range(300):
        logger.warning("cause %s", "x" * number)
    assert "(1 times more" in stream.getvalue()
    refuse(logger, 3)
    refuse(logger, 4)
    logger.handlers[0].close()
    assert stream.getvalue().count("times more") == 2


def test_a_stranger_s_words_make_no_lines(log):
    logger, stream, timers = log
    for word in ("one", "another", "\x1b[2J"):
        logger.warning("a report is skipped: %s", word, extra={"cause": "unreadable report"})
    timers.minute()
    assert stream.getvalue().count("a report is skipped") == 2
