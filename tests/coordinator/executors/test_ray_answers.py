"""What nodes answer: read by its fields, and refused with the remedy where it is another SUPER's."""

from __future__ import annotations

import json

import pytest

from superdl.coordinator.executors import ExecutorError, FunctionRaisedError
from superdl.coordinator.executors.ray_answers import read_result, read_warmed
from superdl.super_wire.request import PrefetchResult
from superdl.super_wire.version import installed_version

WARM = {"function_version": installed_version(), "golden": "a" * 32, "clock_s": 12.5}
RESULT = PrefetchResult("mine", "0", False, ("cached",), *((0,),) * 5).to_mapping()


def answer(**result):
    return json.dumps({"result": result})


def test_a_warm_answer_tells_digest_and_clock():
    warmed = read_warmed(answer(**WARM))
    assert (warmed.golden, warmed.clock_s) == ("a" * 32, 12.5)
    for clock_s in (float("nan"), float("inf"), "12", None):
        assert read_warmed(answer(**{**WARM, "clock_s": clock_s})).clock_s == 0.0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (answer(**{**WARM, "function_version": "9.9"}), "SUPER 9.9 is installed there.*install .* there"),
        (answer(**{**WARM, "golden": "x"}), "install SUPER there"),
        (answer(**{**WARM, "golden": None}), "install SUPER there"),
        (json.dumps({"error": "CacheError", "message": "no route"}), "raised CacheError: no route"),
        ("no json", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("[]", "no result"),
        (json.dumps({"result": 1}), "no result"),
    ],
)
def test_what_is_no_warm_answer_of_ours_is_refused(text, reason):
    with pytest.raises(ExecutorError, match=reason):
        read_warmed(text)


def test_a_result_is_that_of_the_request():
    text = answer(**RESULT)
    assert read_result(text, "mine").outcomes == ("cached",)
    with pytest.raises(FunctionRaisedError, match="asked for request other and answered for 'mine'"):
        read_result(text, "other")
    with pytest.raises(FunctionRaisedError, match="no prefetch result"):
        read_result(answer(what=1), "mine")
    with pytest.raises(FunctionRaisedError, match="the function raised ValueError: no"):
        read_result(json.dumps({"error": "ValueError", "message": "no"}), "mine")


def test_words_of_others_are_short_and_in_one_line():
    told = {"error": "E" * 1_000_000, "message": "\x1b[31mred\nand\r" + "x" * 1_000_000}
    with pytest.raises(FunctionRaisedError) as caught:
        read_result(json.dumps(told), "mine")
    assert len(str(caught.value)) < 800
    assert str(caught.value).isprintable()
    assert "E: [31mred and xxx" in str(caught.value)
    messages = {"0": "\x00no\n" + "x" * 1_000_000}
    result = read_result(answer(**{**RESULT, "outcomes": ["missing"], "messages": messages}), "mine")
    assert result.messages["0"].startswith("no xxx")
    assert len(result.messages["0"]) == 600
    with pytest.raises(FunctionRaisedError, match="2 messages for 1 samples"):
        read_result(answer(**{**RESULT, "messages": {"0": "a", "1": "b"}}), "mine")
