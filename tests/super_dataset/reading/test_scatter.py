"""The replies' bytes reach their places however the network cuts them, and nonsense is noticed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from superdl.super_dataset.reading.buffer import BatchBuffer, ReplyKind
from superdl.super_dataset.reading.scatter import ReplyScatter, parse_line
from superdl.super_wire.cache import ProtocolDoubtError
from superdl.super_wire.record import HEADER_BYTES
from tests.super_dataset.stored_batches import record, tombstone


def bulk(value: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(value), value)


def feed(scatter: ReplyScatter, stream: bytes, cuts) -> None:
    """Give the stream as ``recvmsg_into`` would, in pieces of the sizes in ``cuts`` (the last repeats)."""
    sizes = iter(cuts)
    size, at = 1, 0
    while at < len(stream):
        size = next(sizes, size)
        left = size
        for view in scatter.buffers():
            taken = min(left, len(view), len(stream) - at)
            view[:taken] = stream[at : at + taken]
            at += taken
            left -= taken
            if taken < len(view):
                break
        scatter.received(size - left)


array_of = {
    "equal": lambda n: np.full((4, 3), n % 256, dtype=np.uint8),
    "other": lambda n: np.full((n % 5, 7), n % 100, dtype=np.int16),
    "large": lambda n: np.full((700,), n % 256, dtype=np.uint8),
}
kinds = st.one_of(
    st.just("equal"),
    st.sampled_from(["equal", "other", "large", "nil", "error", "tombstone", "short", "empty"]),
)


def reply_of(kind: str, n: int) -> bytes:
    if kind == "nil":
        return b"$-1\r\n"
    if kind == "error":
        return b"-LOADING reply %d\r\n" % n
    if kind == "tombstone":
        return bulk(tombstone(f"key {n}"))
    if kind == "short":
        return bulk(b"\r\n$5" * (n % 3) + b"x")
    if kind == "empty":
        return bulk(b"")
    return bulk(record(array_of[kind](n)))


def check(buffer: BatchBuffer, offset: int, kind: str) -> None:
    if kind in ("nil", "error"):
        assert buffer.replies[offset] == (ReplyKind.NIL if kind == "nil" else ReplyKind.ERROR)
        assert buffer.errors.get(offset) == (None if kind == "nil" else f"LOADING reply {offset}")
        return
    assert buffer.replies[offset] == ReplyKind.RECORD
    whole = reply_of(kind, offset).split(b"\r\n", 1)[1][:-2]
    assert buffer.record_bytes[offset] == len(whole)
    if len(whole) < HEADER_BYTES:
        assert bytes(buffer.payload(offset)) == whole
    else:
        assert bytes(buffer.raw_headers[offset]) + bytes(buffer.payload(offset)) == whole


@given(
    asked=st.lists(kinds, min_size=1, max_size=24),
    rounds=st.integers(1, 4),
    skip=st.lists(
        st.sampled_from([b"+OK\r\n", b":7\r\n", b"$3\r\nabc\r\n", b"-ERR no\r\n", b"$-1\r\n"]), max_size=2
    ),
    cuts=st.lists(st.integers(1, 3000), min_size=1, max_size=30),
    uniform=st.booleans(),
)
def test_the_same_however_bytes_are_cut_and_requests_are_batched(asked, rounds, skip, cuts, uniform):
    buffer = BatchBuffer(len(asked) + 2, uniform=uniform)
    offsets = list(range(1, len(asked) + 1))  # samples before and after were not asked for
    scatter = ReplyScatter(buffer, offsets, skip=len(skip))
    feed(scatter, b"".join(skip), cuts)
    per_round = -(-len(asked) // rounds)
    for start in range(0, len(asked), per_round):
        part = offsets[start : start + per_round]
        scatter.asked(len(part))
        feed(
            scatter,
            b"".join(reply_of(kind, offset) for kind, offset in zip(asked[start:], part, strict=False)),
            cuts,
        )
        assert scatter.answered == part[-1]
    assert scatter.finished
    for offset, kind in zip(offsets, asked, strict=True):
        check(buffer, offset, kind)
    assert buffer.replies[0] == buffer.replies[-1] == ReplyKind.NONE


@given(
    asked=st.lists(st.tuples(kinds, st.booleans()), min_size=1, max_size=20),
    skip=st.lists(
        st.sampled_from([b"+OK\r\n", b"-MOVED 1 h:1\r\n", b"$-1\r\n", b"$2\r\nab\r\n"]), max_size=2
    ),
    cuts=st.lists(st.integers(1, 3000), min_size=1, max_size=30),
)
def test_what_stands_between_replies_is_let_pass(asked, skip, cuts):
    """Answers that nobody waits for, and the answers to ASKING."""
    buffer = BatchBuffer(len(asked))
    offsets = list(range(len(asked)))
    asking = [at for at, (_, redirected) in enumerate(asked) if redirected]
    scatter = ReplyScatter(buffer, offsets, skip=len(skip), asking=asking)
    scatter.asked(len(asked))
    parts = list(skip)
    for offset, (kind, redirected) in enumerate(asked):
        parts += [b"+OK\r\n" if redirected else b"", reply_of(kind, offset)]
    feed(scatter, b"".join(parts), cuts)
    assert scatter.finished
    assert scatter.skipped_errors == [reply[1:-2].decode() for reply in skip if reply[:1] == b"-"]
    for offset, (kind, _) in enumerate(asked):
        check(buffer, offset, kind)


def test_an_error_in_answer_to_asking_shifts_nothing():
    """The GET is answered all the same; were the error taken for its answer, others would get its record."""
    buffer = BatchBuffer(3)
    scatter = ReplyScatter(buffer, [0, 1, 2], asking={0, 1})
    scatter.asked(3)
    first = b"-LOADING not yet\r\n" + reply_of("equal", 0)
    feed(scatter, first, [1000])
    assert not scatter.finished
    feed(scatter, b"-LOADING not yet\r\n-MOVED 1 h:1\r\n" + b"$-1\r\n", [7])
    assert scatter.finished
    check(buffer, 0, "equal")
    assert buffer.errors == {1: "LOADING not yet"}
    assert buffer.replies[2] == ReplyKind.NIL


@given(data=st.data(), cuts=st.lists(st.integers(1, 400), min_size=1, max_size=30))
def test_a_damaged_stream_is_noticed_or_leaves_every_record_its_own_length(data, cuts):
    """One byte of a stream is another: an error, or the frames still hold; never a crash."""
    kept = [data.draw(kinds) for _ in range(8)]
    stream = bytearray(b"".join(reply_of(kind, n) for n, kind in enumerate(kept)))
    stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    buffer = BatchBuffer(8)
    scatter = ReplyScatter(buffer, list(range(8)))
    scatter.asked(8)
    try:
        feed(scatter, bytes(stream), cuts)
    except ProtocolDoubtError:
        return
    scatter.settle()
    for offset in np.flatnonzero(buffer.replies == ReplyKind.RECORD).tolist():
        size = int(buffer.record_bytes[offset])
        assert len(buffer.payload(offset)) == (size if size < HEADER_BYTES else size - HEADER_BYTES)


@given(count=st.integers(0, 200), cuts=st.lists(st.integers(1, 500), min_size=1, max_size=20))
def test_what_is_whole_when_the_stream_breaks_is_kept(count, cuts):
    size = 12
    stream = b"".join(reply_of("equal", offset) for offset in range(size))
    stream = stream[: count * len(stream) // 200]
    buffer = BatchBuffer(size)
    scatter = ReplyScatter(buffer, list(range(size)))
    scatter.asked(size)
    feed(scatter, stream, cuts)
    scatter.settle()
    received = np.flatnonzero(buffer.replies == ReplyKind.RECORD).tolist()
    whole = len(stream) // len(reply_of("equal", 0))
    assert received == list(range(len(received)))
    assert whole - 1 <= len(received) <= whole  # the last one's line end may not have been looked at yet
    for offset in received:
        check(buffer, offset, "equal")


def test_equal_records_share_one_block_in_order():
    buffer = BatchBuffer(5)
    scatter = ReplyScatter(buffer, list(range(5)))
    scatter.asked(5)
    feed(scatter, b"".join(reply_of("equal", n) for n in range(5)), [10_000])
    assert buffer.block is not None
    assert buffer.block.numpy().reshape(5, 12)[:, 0].tolist() == [0, 1, 2, 3, 4]
    assert not buffer.own


@pytest.mark.parametrize(
    ("stream", "reason"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "no answer"),
        (b"+OK\r\n", "answered by 'OK'"),
        (b"$-2\r\n", "no answer"),
        (b"$99999999999\r\n", "no answer"),
        (b"$x\r\n", "no answer"),
        (b"*1\r\n", "no answer"),
        (b">1\r\n?\r\n", "no answer"),
        (b"_\r\n", "no answer"),
        (b"x" * 70_000, "longer"),
        (b"$3\r\nabcde", "instead of a line's end"),
        (reply_of("equal", 0)[:-2] + b"XX", "instead of a line's end"),
        (reply_of("equal", 0)[:-2] + b"\rX", "instead of a line's end"),
        (b"$-1\r\n" * 4 + b"$-1\r\n", "nobody asked"),
        (reply_of("equal", 0) * 4 + b"$", "nobody asked"),
    ],
)
def test_nonsense_is_noticed(stream, reason):
    for cuts in ([1] if len(stream) < 1000 else [999], [7, 500], [100_000]):
        buffer = BatchBuffer(4)
        scatter = ReplyScatter(buffer, list(range(4)))
        scatter.asked(4)
        with pytest.raises(ProtocolDoubtError, match=reason):
            feed(scatter, stream, cuts)


@pytest.mark.parametrize(
    ("line", "meaning"),
    [
        (b"$0", ("bulk", 0, "")),
        (b"$536870912", ("bulk", 2**29, "")),
        (b"$-1", ("nil", 0, "")),
        (b":12", ("simple", 0, "12")),
        (b"-ERR no", ("error", 0, "ERR no")),
    ],
)
def test_what_a_reply_line_says(line, meaning):
    assert parse_line(line) == meaning


@pytest.mark.parametrize("line", [b"", b"$536870913", b"$+1", "$٣".encode(), b"*2", b"$" + b"9" * 5000])
def test_other_lines_are_doubted(line):
    with pytest.raises(ProtocolDoubtError):
        parse_line(line)
