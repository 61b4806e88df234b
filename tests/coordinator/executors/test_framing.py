"""Messages survive the way to a worker and back; what is no message is refused."""

from __future__ import annotations

import pytest

from superdl.coordinator.executors.framing import (
    LENGTH_BYTES,
    MAX_FRAME_BYTES,
    FramingError,
    body_length,
    frame,
    parse,
)


def test_round_trip():
    message = {"event": {"keys": ["ä", "b\n"], "n": 1.5, "none": None}}
    framed = frame(message)
    assert body_length(framed[:LENGTH_BYTES]) == len(framed) - LENGTH_BYTES
    assert parse(framed[LENGTH_BYTES:]) == message


def test_a_length_beyond_the_bound_is_refused():
    assert body_length(MAX_FRAME_BYTES.to_bytes(LENGTH_BYTES, "big")) == MAX_FRAME_BYTES
    with pytest.raises(FramingError, match="over the limit"):
        body_length((MAX_FRAME_BYTES + 1).to_bytes(LENGTH_BYTES, "big"))


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b'"x"', b"\xff"])
def test_what_is_no_message_is_refused(body):
    with pytest.raises(FramingError, match="message"):
        parse(body)
