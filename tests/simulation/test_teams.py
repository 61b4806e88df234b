"""Two teams on one simulated coordinator: what each has of functions and memory where there is too little."""

from collections import Counter

import pytest

from superdl.experiments.simulator.predict import predict
from superdl.experiments.simulator.spec import (
    CacheSpec,
    CoordinatorSpec,
    DatasetSpec,
    FunctionsSpec,
    JobSpec,
    SimulationSpec,
    TeamSpec,
    build_world_model,
)
from superdl.experiments.simulator.world import World

DATASETS = "images", "sounds"
HUNGRY_S = 0.001
"""A step that functions cannot keep up with."""


def two_teams(*, places, steps_s=(HUNGRY_S, HUNGRY_S), count=4, **facts):
    """Each has jobs on a dataset of its own: vision's share is three times that of speech."""
    jobs = zip(("vision", "speech"), ("images", "sounds"), steps_s, strict=True)
    return SimulationSpec(
        minutes=1.0,
        datasets=tuple(DatasetSpec(name=name, samples=500_000, record_bytes=10_000) for name in DATASETS),
        jobs=tuple(
            JobSpec(name=team, team=team, dataset=dataset, step_s=step_s, count=count, batch_size=64)
            for team, dataset, step_s in jobs
        ),
        functions=FunctionsSpec(kind="pool", concurrency=places, decode_s=0.01, overhead_s=0.01),
        coordinator=CoordinatorSpec(request_samples=32),
        teams=facts.pop("teams", (TeamSpec(name="vision", share=3.0), TeamSpec(name="speech"))),
        **facts,
    )


def produced(spec):
    """How many samples functions have produced for each team."""
    core = World(build_world_model(spec), log=False).run().core
    made = Counter()
    for job in core.jobs:
        made[job.team] += job.counters.samples_produced
    return made


@pytest.mark.parametrize(
    "places", [2, *(pytest.param(many, marks=pytest.mark.slow) for many in (16, 64))], ids="places-{}".format
)
def test_shares_of_three_to_one_give_three_to_one(places):
    made = produced(two_teams(places=places))
    assert made["vision"] / made["speech"] == pytest.approx(3, rel=0.05)
    assert made.total() > 0.9 * 60 * places / 0.0105, "no place stands empty"


def test_a_team_that_wants_less_than_its_share_has_all_of_it_and_others_the_rest():
    """Vision reads 640 images/s of some 1,500: its share would be more."""
    jobs = predict(two_teams(places=16, steps_s=(0.4, HUNGRY_S))).jobs
    assert max(job.stall_share for job in jobs[:4]) < 0.02
    assert min(job.images_per_s for job in jobs[:4]) > 0.95 * 160
    assert sum(job.images_per_s for job in jobs[4:]) > 700


@pytest.mark.slow
def test_a_higher_priority_goes_before_any_share():
    teams = (TeamSpec(name="vision", share=3.0), TeamSpec(name="speech", priority=1))
    made = produced(two_teams(places=16, teams=teams))
    assert made["speech"] > 10 * made["vision"]


@pytest.mark.slow
@pytest.mark.parametrize(("share", "ratio"), [(1.0, 1), (3.0, 3)])
def test_memory_that_is_short_is_held_by_shares(share, ratio):
    """Both read as fast as they want, and as fast as each other."""
    teams = (TeamSpec(name="vision", share=share), TeamSpec(name="speech"))
    spec = two_teams(places=64, steps_s=(0.2, 0.2), teams=teams, cache=CacheSpec(budget_gb=0.4))
    core = World(build_world_model(spec), log=False).run().core
    held = {key.dataset.decode(): samples.resident_bytes for key, samples in core.state.sets.items()}
    assert held["images"] / held["sounds"] == pytest.approx(ratio, rel=0.1)
    assert core.state.dropped_samples > 10_000
