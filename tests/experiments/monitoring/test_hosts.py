"""What hosts of a launched run used: only what is a look counts, and figures are of the time of training."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superdl.experiments.monitoring import checked_usage, host_usages

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=300),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
FIELDS = st.fixed_dictionaries({}, optional={"host": ANYTHING, "cores": ANYTHING, "cpu_s": ANYTHING})


def look(at_s, host, cores=2, **cpu_s):
    return json.dumps({"at_s": at_s, "host": host, "cores": cores, "cpu_s": cpu_s})


def test_figures_are_differences_between_the_looks_around_training(tmp_path):
    file = tmp_path / "hosts.jsonl"
    looks = [look(at, "cpu-1", functions=float(at), cache=1.0) for at in range(0, 22, 2)]
    looks += [look(at, "gpu-1", cores=8, trainer=4.0 * at) for at in (5, 13)]
    file.write_text("\n".join([*looks[:4], "no look", *looks[4:], looks[-1][:30]]))
    data, gpu = host_usages(file, 5.0, 11.0)
    assert (data.host, data.cores, data.wall_s) == ("cpu-1", 2, 8.0)
    assert data.cpu_s == {"functions": 8.0, "cache": 0.0}
    assert data.cpu_cores == pytest.approx(1.0)
    assert (gpu.host, gpu.wall_s, gpu.cpu_cores) == ("gpu-1", 8.0, 4.0)
    assert host_usages(tmp_path / "none", 0.0, 1.0) == ()


@given(ANYTHING | FIELDS)
def test_what_is_no_look_is_left_out_and_what_is_one_is_small(told):
    seen = checked_usage(told)
    if seen is not None:
        assert len(json.dumps(seen)) < 4096
        assert checked_usage(json.loads(json.dumps(seen))) == seen
