"""States are small JSON, and those of another plan are rejected with the differences."""

import json

import numpy as np
import pytest

from superdl.sampler.checkpoint import Checkpoint
from superdl.sampler.prefetch import PlanPosition
from superdl.sampler.session import JobSpec
from superdl.super_wire.errors import ConfigError

SPEC = {"batch_size": 8, "seed": -7, "shuffle": True, "drop_last": False, "rank": 0, "num_replicas": 4}


def checkpoint(*, fingerprint=b"f" * 16, batches=50, in_order=True, **changes):
    return Checkpoint(JobSpec(**SPEC | changes), fingerprint, batches, in_order=in_order)


@pytest.mark.parametrize(
    "place", [PlanPosition(), PlanPosition(3, 17), PlanPosition(2, 50), PlanPosition(2**40, 4, (6, 9))]
)
def test_states_are_small_and_survive_json(place):
    text = json.dumps(checkpoint().state_of(place))
    assert len(text) < 400
    assert checkpoint().position_in(json.loads(text)) == place


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 3}, "seed is -7 in the state but 3 here"),
        ({"shuffle": False}, "shuffle is True in the state but False here"),
        ({"drop_last": True}, "drop_last is False in the state but True here"),
        (
            {"fingerprint": b"g" * 16},
            f"fingerprint is '{'66' * 16}' in the state but '{'67' * 16}' here.*files",
        ),
        ({"batch_size": 9}, "8 x 4 ranks = 32 in the state but 9 x 4 ranks = 36 here"),
        ({"num_replicas": 2}, "8 x 4 ranks = 32 in the state but 8 x 2 ranks = 16 here"),
        ({"seed": 3, "num_replicas": 2}, "seed is -7.*; the global batch is 8 x 4"),
    ],
)
def test_another_plan_is_rejected_with_its_differences(change, message):
    with pytest.raises(ConfigError, match=message):
        checkpoint(**change).position_in(checkpoint().state_of(PlanPosition(1, 2)))


@pytest.mark.parametrize("change", [{"rank": 1}, {"batch_size": 16, "num_replicas": 2}])
def test_each_rank_has_its_own_state_with_in_order_false(change):
    state = checkpoint(in_order=False).state_of(PlanPosition(1, 2, (4,)))
    assert checkpoint().position_in(state) == PlanPosition(1, 2, (4,)), "in order it goes on with the rest"
    with pytest.raises(ConfigError, match="saved with in_order=False by rank 0 of 4.*each rank's own state"):
        checkpoint(in_order=False, **change).position_in(state)


OF_NOBODY = [
    ({"version": 2}, "has version 2, but this sampler reads version 1"),
    ({"version": np.arange(2)}, r"has version array\(\[0, 1\]\)"),
    ({"position": 51}, "position is 51, but an epoch has 50"),
    ({"position": -1}, "position is -1"),
    ({"epoch": 1.0}, "epoch is 1.0, which is not a valid int"),
    ({"shuffle": 1}, "shuffle is 1, which is not a valid bool"),
    *(({"epoch": epoch}, "epoch is") for epoch in (-1, 2**41)),
    *(({"given_ahead": ahead}, "given_ahead is") for ahead in ([2], [50], ["7"], [7] * 2000)),
]


@pytest.mark.parametrize(("change", "message"), OF_NOBODY)
def test_invalid_values_are_rejected(change, message):
    with pytest.raises(ConfigError, match=message):
        checkpoint().position_in(checkpoint().state_of(PlanPosition(1, 2)) | change)


@pytest.mark.parametrize(
    ("state", "message"),
    [({"_snapshot": {}}, "it lacks version, seed"), (None, "a dict returned by state_dict")],
)
def test_other_objects_are_rejected(state, message):
    with pytest.raises(ConfigError, match=message):
        checkpoint().position_in(state)
