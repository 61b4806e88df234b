"""Bytes that nearly are what they should be: what was good once, changed here and there."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.hostile.fuzz_wire import INTERESTING


@st.composite
def mutated(draw: Any, good: bytes) -> bytes:
    """``good`` after one to four changes: bytes replaced, put in, taken out, repeated, or all cut off."""
    data = good
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        end = min(len(data), at + draw(st.integers(0, 8)))
        new = draw(st.binary(max_size=8) | st.sampled_from(INTERESTING))
        data = draw(
            st.sampled_from(
                [
                    data[:at] + new + data[end:],
                    data[:at] + new + data[at:],
                    data[:at] + data[end:],
                    data[:end] + data[at:],
                    data[:at],
                ]
            )
        )
    return data
