"""Raise, skip, replace: which samples are delivered, and that nobody can fail to notice."""

from __future__ import annotations

import logging

import pytest

from superdl.super_dataset.reading.delivery import BadSampleLog, check_policy, delivered_order
from superdl.super_wire.errors import BadSampleError, ConfigError
from tests.super_dataset.stored_batches import ref_of

REF = ref_of(5, "unix:///c")


@pytest.mark.parametrize(
    ("bad", "skip", "replace"),
    [
        ({}, None, None),
        ({0}, [1, 2, 3, 4], [1, 1, 2, 3, 4]),
        ({4}, [0, 1, 2, 3], [0, 1, 2, 3, 0]),
        ({1, 2}, [0, 3, 4], [0, 3, 3, 3, 4]),
        ({0, 3, 4}, [1, 2], [1, 1, 2, 1, 1]),
        ({0, 1, 3, 4}, [2], [2, 2, 2, 2, 2]),
    ],
)
def test_orders(bad, skip, replace):
    reasons = dict.fromkeys(bad, "undecodable")
    assert delivered_order(REF, reasons, "skip") == skip
    assert delivered_order(REF, reasons, "replace") == replace


def test_raise_names_keys_reasons_and_batch():
    with pytest.raises(BadSampleError, match=r"2 of 5 samples.*train/0-1\.jpg \(undecodable: x\)") as caught:
        delivered_order(REF, {1: "undecodable: x", 3: "too_large: y"}, "raise")
    message = str(caught.value)
    assert REF.batch_id.hex() in message
    assert "train/0-3.jpg (too_large: y)" in message
    assert 'on_bad_sample="skip"' in message


def test_many_bad_samples_give_a_short_message():
    ref = ref_of(1000, "unix:///c")
    with pytest.raises(BadSampleError, match="and 997 more") as caught:
        delivered_order(ref, dict.fromkeys(range(1000), "undecodable: x"), "raise")
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("policy", ["skip", "replace"])
def test_a_batch_with_no_good_sample_raises(policy):
    with pytest.raises(BadSampleError, match="at least one good sample"):
        delivered_order(REF, dict.fromkeys(range(5), "undecodable"), policy)


@pytest.mark.parametrize("value", ["ignore", None, True, ["skip"]])
def test_unknown_policies_are_refused(value):
    with pytest.raises(ConfigError, match="'raise', 'skip', 'replace'"):
        check_policy(value)


def test_warnings_are_rate_limited_and_lose_no_count(caplog):
    now_s = [0.0]
    log = BadSampleLog(lambda: now_s[0])
    with caplog.at_level(logging.WARNING, logger="super_dataset"):
        for now_s[0] in (0.0, 1.0, 59.0, 61.0):
            log.add(REF, {1: "undecodable: x", 2: "undecodable: y"}, "skip")
    first, second = (entry.getMessage() for entry in caplog.records)
    assert first.startswith("2 bad samples")
    assert "train/0-1.jpg" in first
    assert second.startswith("6 bad samples")
