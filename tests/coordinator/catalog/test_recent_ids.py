"""What is remembered of ids is what would be derived anew."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from superdl.coordinator.catalog.catalog import RecentIds
from superdl.super_wire.ids import ID_BYTES

# Few slots, many indices that share them.
INDICES = st.lists(st.sampled_from([0, 1, 2**17, 2**17 + 1, 2**18, 2**39]), max_size=8)
EPOCHS = st.sampled_from([0, 1, 2, 2**22 - 1, 2**22, 2**40])


def derive(indices, epoch):
    return b"".join((int(index) + (epoch << 48)).to_bytes(ID_BYTES, "little") for index in indices)


@given(st.lists(st.tuples(INDICES, EPOCHS), max_size=8))
def test_gives_what_would_be_derived(calls):
    recent = RecentIds()
    for indices, epoch in calls:
        places = np.array(indices, dtype=np.int64)
        assert recent.ids(places, epoch, lambda some: derive(some, epoch)) == derive(indices, epoch)  # noqa: B023  # called at once
