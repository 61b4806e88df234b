"""A repeated cause is logged once, then once a minute with its count."""

import io
import json
import logging
import time

import pytest

from superdl.coordinator.server.log_handler import LINE_FORMATS, RepeatedLines


@pytest.fixture
def log():
    """A logger that writes as the coordinator does, its lines so far, and a clock to set."""
    stream, hands = io.StringIO(), [1000.0]
    logger = logging.getLogger("test.repeated")
    logger.propagate, logger.handlers = False, [RepeatedLines(stream, clock=lambda: hands[0])]
    logger.setLevel(logging.INFO)
    return logger, lambda: stream.getvalue().splitlines(), hands


def refuse(logger, number):
    logger.warning("request %s to %s failed: %s", f"{number}-0a1b2c3d", "lambda", f"429 after 0.{number} s")


def test_a_repeated_cause_is_one_line_a_minute_with_its_count(log):
    logger, lines, hands = log
    for number in range(871):
        refuse(logger, number)
    logger.warning("something else")
    assert len(lines()) == 2
    hands[0] += 60.0
    refuse(logger, 871)
    assert lines()[2].startswith("request 871-0a1b2c3d to lambda failed")
    assert lines()[2].endswith("(and 870 more times since it was last logged)")
    hands[0] += 60.0
    refuse(logger, 872)
    assert "more times" not in lines()[3]


def test_warnings_are_counted_by_part_and_the_latest_kept_by_cause(log):
    logger, _, _ = log
    handler = logger.handlers[0]
    for number in range(871):
        refuse(logger, number)
    for name in ("superdl.coordinator.cache.nodes", "superdl.coordinator.store.keeper", "grpc._server"):
        handler.handle(logging.makeLogRecord({"name": name, "levelno": logging.ERROR, "msg": f"of {name}"}))
    old = {"name": "superdl.coordinator.core", "levelno": logging.WARNING, "msg": "long ago", "created": 1.0}
    handler.handle(logging.makeLogRecord(old))
    logger.info("serving")
    counts, latest = handler.warned_of()
    assert counts == {"other": 872, "cache": 1, "store": 1, "core": 1}
    assert [warning.times for warning in latest] == [871, 1, 1, 1]
    assert latest[0].text.startswith("request 870-0a1b2c3d to lambda failed")
    assert latest[-1].text == "of grpc._server"
    assert all(abs(warning.at_s - time.time()) < 60 for warning in latest)
    for number in range(20):
        logger.warning("cause %s", "x" * number)
    assert len(handler.warned_of()[1]) == 10


def test_causes_that_differ_in_words_are_separate_and_other_lines_are_always_written(log):
    logger, lines, _ = log
    for name in ("lambda", "workers", "local"):
        logger.error("the executor %s is gone", name)
    for _ in range(5):
        logger.info("serving")
    assert len(lines()) == 8
    # A client that hangs up is no error, and a stranger's words make no new causes.
    logger.error("ExecuteBatchError raised in core by servicer method [/grpc.health.v1.Health/Check]")
    for word in ("one", "another", "\x1b[2J"):
        logger.warning("a report is skipped: %s", word, extra={"cause": "unreadable report"})
    assert len(lines()) == 9
    assert sum(logger.handlers[0].warned_of()[0].values()) == 6


def test_counted_lines_are_logged_after_a_minute_without_another(log):
    logger, lines, hands = log
    for number in range(40):
        refuse(logger, number)
    logger.handlers[0].log_counts()
    assert len(lines()) == 1
    hands[0] += 60.0
    logger.handlers[0].log_counts()
    logger.handlers[0].log_counts()
    assert lines()[1:] == [
        lines()[0].replace("0-0a1b", "39-0a1b").replace("0.0 s", "0.39 s") + " (the newest of 39 in 60 s)"
    ]


def test_fifteen_warnings_a_minute_are_written_and_all_errors(log):
    logger, lines, hands = log
    for word in range(100):
        logger.warning("cause %s", "x" * word)
    assert len(lines()) == 15
    logger.error("a bug")
    hands[0] += 60.0
    logger.handlers[0].log_counts()
    assert lines()[15:] == ["a bug", "85 more warnings with other causes"]
    logger.warning("another cause")
    assert len(lines()) == 18


def test_a_json_line_has_the_jobs_and_requests_it_is_about(log):
    logger, lines, _ = log
    logger.handlers[0].setFormatter(LINE_FORMATS["json"]())
    about = {"job": 'a"\n}', "rank": 3, "executor": "lambda", "request": "7-0a", "cause": "hidden"}
    logger.warning("failed\x1b[2J: %s", "no\nnewline", extra=about)
    logger.error("a bug", exc_info=ValueError("inner"))
    first, second = map(json.loads, lines())
    assert {**about, "level": "WARNING", "message": "failed\x1b[2J: no\nnewline"}.items() - {
        ("cause", "hidden")
    } <= first.items()
    assert "cause" not in first
    assert first["time"].endswith("Z")
    assert "ValueError: inner" in second["exception"]
