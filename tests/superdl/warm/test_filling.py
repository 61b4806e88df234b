"""The job that warms, where the coordinator loses its memory at the worst time."""

from __future__ import annotations

from typing import Any

from superdl.super_wire import coordinator_pb2 as pb
from superdl.super_wire.recipe import Recipe
from superdl.warm import Limits, Standing, WarmReport, estimate_of, filling
from tests.sampler.stand_ins import BoundDataset

RECIPE = Recipe.image(resize=32, crop=32)


class Restarted:
    """A coordinator that is restarted after it has answered ``FillUp`` for the first time."""

    address = "127.0.0.1:1"

    def __init__(self) -> None:
        self.calls: list[str] = []

    def call(self, method: str, request: Any, *_: Any) -> Any:
        self.calls.append(method)
        if method == "GetJobStats":
            known = self.calls.count("OpenJob") > 1
            return pb.JobStatsList(jobs=[pb.JobStats(job=request.jobs[0], samples_produced=9)] * known)
        return pb.Filling(there=10, ended="all") if method == "FillUp" else pb.Job()


def test_a_coordinator_that_is_restarted_between_two_calls_is_told_again(monkeypatch):
    standing = Standing(samples=10, budget_bytes=2**30, free_bytes=2**30, prices={}, dataset_id=b"d" * 16)
    monkeypatch.setattr(filling, "standing_of", lambda *_, **__: standing)
    estimate, client, report = estimate_of(standing, RECIPE, "file:///images"), Restarted(), WarmReport(10)
    job = filling._Filling(
        client, BoundDataset(), standing, estimate, Limits(), report, shuffle=False, seed=0
    )
    assert [job.step(0.0), job.step(0.1)] == [False, True]
    assert client.calls == ["OpenJob", "FillUp", "GetJobStats"] * 2
    assert (report.warm, report.produced, report.ended) == (10, 9, "all")
