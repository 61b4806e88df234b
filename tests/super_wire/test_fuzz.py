"""Whatever comes over a network is read or refused by the reader's own error, and by no other."""

from __future__ import annotations

import contextlib
import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superdl.super_wire.errors import RecordError
from superdl.super_wire.record import MAGIC, unpack
from tests.hostile.fuzz_wire import FUZZERS, PARSERS
from tests.super_wire.mutating import mutated


@pytest.mark.parametrize("name", PARSERS)
def test_the_good_one_is_read(name):
    good, parse, _ = PARSERS[name]
    assert parse(good) is not None


@pytest.mark.parametrize("name", PARSERS)
@given(data=st.data())
def test_what_is_nearly_good_is_read_or_refused(name, data):
    good, parse, refusal = PARSERS[name]
    with contextlib.suppress(refusal):
        parse(data.draw(mutated(good) | st.binary(max_size=200)))


@given(
    head=st.tuples(st.just(2), st.integers(0, 2), st.integers(0, 12), st.integers(0, 7)),
    sizes=st.tuples(*[st.integers(0, 2**64 - 1) | st.integers(0, 100)] * 2),
    rest=st.tuples(*[st.integers(0, 2**32 - 1) | st.integers(0, 9)] * 8),
    payload=st.binary(max_size=100),
)
def test_no_header_makes_an_array_that_its_bytes_do_not_hold(head, sizes, rest, payload):
    record = struct.pack("<4sBBBBQQ8IQ", MAGIC, *head, *sizes, *rest, 0) + payload
    try:
        header, array = unpack(record, verify=False)
    except RecordError:
        return
    assert array.nbytes == len(payload) == header.payload_bytes


@pytest.mark.parametrize("name", FUZZERS)
def test_each_fuzzer_makes_inputs_that_are_read_or_refused(name):
    chance = random.Random(name)
    for _ in range(300):
        FUZZERS[name](chance)
