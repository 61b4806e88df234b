"""The job that warms, where the coordinator loses its memory at the worst time."""

from __future__ import annotations

import contextlib
from typing import Any

from superdl.super_wire import coordinator_pb2 as pb
from superdl.super_wire.errors import ConfigError, UnknownJobError
from superdl.super_wire.recipe import Recipe
from superdl.warm import Limits, Standing, WarmReport, estimate_of, filling
from tests.sampler.stand_ins import BoundDataset

RECIPE = Recipe.image(resize=32, crop=32)


STANDING = Standing(samples=10, budget_bytes=2**30, free_bytes=2**30, prices={}, dataset_id=b"d" * 16)


class Answering:
    """A client that answers what a test says."""

    address = "127.0.0.1:1"

    def __init__(self, *_: Any) -> None:
        self.calls: list[str] = []

    def hold(self) -> Any:
        return contextlib.nullcontext()


class Restarted(Answering):
    """A coordinator that is restarted after it has answered ``FillUp`` for the first time."""

    def call(self, method: str, request: Any, *_: Any) -> Any:
        self.calls.append(method)
        if method == "GetJobStats":
            if self.calls.count("OpenJob") == 1:
                raise UnknownJobError(request.jobs[0])
            return pb.JobStatsList(jobs=[pb.JobStats(job=request.jobs[0], samples_produced=9)])
        return pb.Filling(there=10, ended="all") if method == "FillUp" else pb.Job()


def test_a_coordinator_that_is_restarted_between_two_calls_is_told_again(monkeypatch):
    monkeypatch.setattr(filling, "standing_of", lambda *_, **__: STANDING)
    estimate, client, report = estimate_of(STANDING, RECIPE, "file:///images"), Restarted(), WarmReport(10)
    job = filling._Filling(
        client, BoundDataset(), STANDING, estimate, Limits(), report, shuffle=False, seed=0
    )
    assert [job.step(0.0), job.step(0.1)] == [False, True]
    assert client.calls == ["OpenJob", "FillUp", "GetJobStats"] * 2
    assert (report.warm, report.produced, report.ended) == (10, 9, "all")


class Full(Answering):
    """A coordinator whose store has no room after the first look."""

    def call(self, method: str, request: Any, *_: Any) -> Any:
        self.calls.append(method)
        if method == "FillUp" and self.calls.count("FillUp") > 1:
            raise ConfigError("the coordinator has no store to fill now: 9.0 of 9.0 GiB used")
        if method == "GetJobStats":
            return pb.JobStatsList(jobs=[pb.JobStats(job=request.jobs[0], samples_produced=4)])
        return pb.Filling(there=4) if method == "FillUp" else pb.Job()


def test_a_store_that_gets_full_ends_it_with_a_report(monkeypatch):
    monkeypatch.setattr(filling, "Client", Full)
    estimate = estimate_of(STANDING, RECIPE, "file:///images", to_store=True)
    order = {"coordinator": "127.0.0.1:1", "limits": Limits(), "shuffle": False, "seed": 0}
    report = filling.fill(BoundDataset(), STANDING, estimate, tell=lambda _: None, **order)
    assert (report.ended, report.warm, report.produced) == ("stalled", 4, 4)
    assert "9.0 of 9.0 GiB used" in report.why
