"""Small messages: read reports, draws, batches and errors."""

import pickle
import zlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from superdl.lambda_prefetch.worker.slots import RequestFailedError
from superdl.super_wire import draws as module
from superdl.super_wire import errors
from superdl.super_wire.batch_ref import BatchRef
from superdl.super_wire.display import shown_lines
from superdl.super_wire.draws import DRAWS_BYTES_MAX, Draws, pack_numbers, unpack_numbers
from superdl.super_wire.errors import ConfigError, CoordinatorError, SuperError, error_from_name
from superdl.super_wire.read_reports import ReadReport

COUNT = st.integers(0, 2**63 - 1)
OFFSETS = st.lists(st.integers(0, 2**32 - 1), max_size=5).map(tuple)
REPORTS = st.builds(ReadReport, *[COUNT] * 12, OFFSETS, OFFSETS)
REPORT = ReadReport(1, 2, 3, 256, 250, 60, 70, 8, 80, 1, 0, 9, (5, 0, 255), (5,))


@given(REPORTS)
def test_a_read_report_survives_its_stream_entry(report):
    entry = report.to_fields()
    assert all(isinstance(name, bytes) and isinstance(value, bytes) for name, value in entry.items())
    assert ReadReport.from_fields(entry) == report


def test_golden_fields_of_a_read_report():
    """The format of this protocol version."""
    assert REPORT.to_fields() == {
        b"r": b"1 2 3 256 250 60 70 8 80 1 0 9",
        b"m": b"\5\0\0\0\0\0\0\0\xff\0\0\0",
        b"c": b"\5\0\0\0",
    }


NUMBERS = b"1 2 3 256 250 60 70 8 80 1 0 "
BAD_NUMBERS = [b"", b"x", b"-1", b"1.5", b"True", b"9223372036854775808", b"1" * 5000, b"\xff", b"1 1"]


@pytest.mark.parametrize(
    "field",
    [
        *({b"r": NUMBERS + number} for number in BAD_NUMBERS),
        *({name: bytes(length)} for name in (b"m", b"c") for length in (3, 2**22 + 4)),
    ],
    ids=lambda field: repr(field)[:20],
)
def test_an_invalid_read_report_is_refused(field):
    with pytest.raises(ValueError, match=r"12 numbers|from 0|invalid literal|too long|element size"):
        ReadReport.from_fields(REPORT.to_fields() | field)


def draws_of(indices=None, weights=None, **how):
    return Draws.of(indices, weights, **{"count": None, "repeats": 1, "shuffle": True} | how)


@given(numbers=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1), ascending=st.booleans())
def test_packed_numbers_are_restored(numbers, ascending):
    packed = np.array(sorted(numbers) if ascending else numbers, dtype="<i8").tobytes()
    assert unpack_numbers(pack_numbers(packed)) == packed


@given(weights=st.lists(st.floats(0, 1e300), min_size=1, max_size=50), repeats=st.integers(1, 9))
def test_draws_survive_a_message(weights, repeats):
    indices = np.arange(len(weights))[::-1] * 3
    for given_draws in (
        draws_of(indices, weights, count=7, repeats=repeats),
        draws_of(indices, shuffle=False, repeats=repeats),
        draws_of(weights=weights, repeats=repeats),
    ):
        assert Draws.unpacked(*given_draws.packed(), given_draws.count, repeats) == given_draws
    assert Draws.unpacked(b"", b"", 0, 0) is None


def test_lists_arrays_and_tensors_of_draws_are_equivalent():
    expected = draws_of([0, 2, 5], [1.0, 0.5, 2.0])
    for kind in (list, tuple, np.array, torch.tensor):
        assert draws_of(kind([5, 0, 2]), kind([2.0, 1.0, 0.5])) == expected
    assert draws_of(range(3), torch.ones(3, dtype=torch.float32)).count == 3
    assert draws_of([5, 0, 2], shuffle=False).index_array.tolist() == [5, 0, 2]
    assert len({draws_of([1, 2]).digest, draws_of([1, 2], repeats=2).digest, draws_of([1, 3]).digest}) == 3


@pytest.mark.parametrize(
    "wrong",
    [
        *({"indices": indices} for indices in ([], {1, 2}, [0.5], [True, False], [[1], [2]], "abc")),
        *({"weights": weights} for weights in ([], ["1"], [[1], [2, 3]])),
        *({"indices": [1, 2], "weights": [1.0]}, {"count": 3}),
    ],
)
def test_invalid_draws_are_refused(wrong):
    with pytest.raises(ConfigError):
        draws_of(**wrong)


def test_an_imagenet_fits_into_a_message():
    generator, size = np.random.default_rng(0), 1_281_167
    split = generator.permutation(size)[: size * 9 // 10]
    by_class = 1 / (1 + np.arange(size) // 1300)
    for drawn in (draws_of(split), draws_of(split, shuffle=False), draws_of(weights=by_class)):
        drawn.packed()
    with pytest.raises(
        ConfigError, match="more than the 4,128,768 that a coordinator accepts: round the weights"
    ):
        draws_of(weights=generator.random(size)).packed()
    assert DRAWS_BYTES_MAX < 4 * 2**20


@pytest.mark.parametrize(
    "packed",
    [
        b"=",
        b"=abc",
        b"?" + zlib.compress(bytes(8)),
        b"=" + zlib.compress(bytes(7)),
        b"=" + zlib.compress(b""),
        b"=" + zlib.compress(bytes(8))[:-1],
        b"+" + zlib.compress(bytes(8 * 101)),
    ],
)
def test_invalid_packed_numbers_are_refused(packed, monkeypatch):
    monkeypatch.setattr(module, "NUMBERS_MAX", 100)
    with pytest.raises(ConfigError, match="indices or weights"):
        unpack_numbers(packed)
    with pytest.raises(ConfigError, match="indices or weights"):
        Draws.unpacked(packed, b"", 0, 1)


@pytest.mark.parametrize(
    ("count", "weighted", "repeats"), [(1, False, 1), (0, True, 1), (2**41, True, 1), (0, False, 2000)]
)
def test_inconsistent_draws_in_a_message_are_refused(count, weighted, repeats):
    weights = pack_numbers(np.ones(3).tobytes()) if weighted else b""
    with pytest.raises(ConfigError, match="invalid draws"):
        Draws.unpacked(b"", weights, count, repeats)


def test_a_batch_names_a_sample_by_key_or_by_id_with_a_command():
    ids, place = bytes(range(32)), ("job", 3, 7, 12_345)
    named = BatchRef(
        bytes(16), *place, b"b" * 16, ids, bytes(16), "int64", b"", ("cat/1.jpg", "cat/2.jpg"), "x"
    )
    assert named.name_of(1) == "cat/2.jpg"
    ref = replace(named, keys=())
    assert (
        ref.name_of(1)
        == f"sample {ids[16:].hex()} (for its key, run superdl stats --batch {(b'b' * 16).hex()})"
    )


ERRORS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, SuperError)]


@pytest.mark.parametrize("error", ERRORS)
@given(message=st.text())
def test_an_error_is_rebuilt_from_its_message(error, message):
    original = error(message)
    assert str(original) == shown_lines(message)
    for back in (
        error_from_name(error.__name__, message),
        pickle.loads(pickle.dumps(original)),
        type(original)(str(original)),
    ):
        assert type(back) is error
        assert str(back) == str(original)


def test_an_error_that_needs_more_than_a_message_becomes_a_coordinator_error():
    assert type(error_from_name(RequestFailedError.__name__, "no")) is CoordinatorError


@given(
    name=st.text() | st.sampled_from(["Exception", "SystemExit", "coordinatorerror", "", "__init__"]),
    message=st.text(),
)
def test_an_unknown_error_name_becomes_a_coordinator_error(name, message):
    back = error_from_name(name, message)
    assert type(back) is CoordinatorError or type(back).__name__ == name
    assert back.args == (message,)
