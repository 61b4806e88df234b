"""Two teams share one simulated coordinator that has too few functions or too little memory."""

from collections import Counter
from dataclasses import replace

import pytest

from superdl.coordinator.core import Team
from superdl.experiments.simulator.predict import predicted_jobs
from superdl.experiments.simulator.spec import (
    CacheSpec,
    CoordinatorSpec,
    DatasetSpec,
    FunctionsSpec,
    JobSpec,
    SimulationSpec,
    build_world_model,
)
from superdl.experiments.simulator.world import World

DATASETS = "images", "sounds"
HUNGRY_S = 0.001  # a step that functions cannot keep up with
THREE_TO_ONE = (Team("vision", 3.0, 0), Team("speech", 1.0, 0))


def two_teams(*, places, steps_s=(HUNGRY_S, HUNGRY_S), teams=THREE_TO_ONE, cache_gb=16.0):
    """Return a world after one minute in which each team ran four jobs on its own dataset."""
    jobs = zip(("vision", "speech"), DATASETS, steps_s, strict=True)
    spec = SimulationSpec(
        minutes=1.0,
        datasets=tuple(DatasetSpec(name=name, samples=500_000, record_bytes=10_000) for name in DATASETS),
        jobs=tuple(
            JobSpec(name=team, dataset=dataset, step_s=step_s, count=4, batch_size=64)
            for team, dataset, step_s in jobs
        ),
        functions=FunctionsSpec(kind="pool", concurrency=places, decode_s=0.01, overhead_s=0.01),
        coordinator=CoordinatorSpec(request_samples=32),
        cache=CacheSpec(budget_gb=cache_gb),
    )
    model = build_world_model(spec)
    jobs = tuple(replace(job, team=job.name.split("-")[0]) for job in model.jobs)
    return World(replace(model, jobs=jobs, settings=replace(model.settings, teams=teams))).run()


def produced(world):
    """Count the samples that functions have produced for each team."""
    made = Counter()
    for job in world.core.jobs:
        made[job.team] += job.counters.samples_produced
    return made


@pytest.mark.parametrize(
    "places", [2, *(pytest.param(many, marks=pytest.mark.slow) for many in (16, 64))], ids="places-{}".format
)
def test_shares_of_three_to_one_give_three_to_one(places):
    made = produced(two_teams(places=places))
    assert made["vision"] / made["speech"] == pytest.approx(3, rel=0.05)
    assert made.total() > 0.9 * 60 * places / 0.0105, "every slot stays busy"


def test_a_team_that_needs_less_than_its_share_leaves_the_rest_to_others():
    """Vision reads 640 of about 1,500 images/s, which is less than its share."""
    jobs = predicted_jobs(two_teams(places=16, steps_s=(0.4, HUNGRY_S)))
    assert max(job.stall_share for job in jobs[:4]) < 0.02
    assert min(job.images_per_s for job in jobs[:4]) > 0.95 * 160
    assert sum(job.images_per_s for job in jobs[4:]) > 700


@pytest.mark.slow
def test_a_higher_priority_goes_before_any_share():
    teams = (Team("vision", 3.0, 0), Team("speech", 1.0, 1))
    made = produced(two_teams(places=16, teams=teams))
    assert made["speech"] > 10 * made["vision"]


@pytest.mark.slow
@pytest.mark.parametrize(("share", "ratio"), [(1.0, 1), (3.0, 3)])
def test_scarce_memory_is_divided_by_shares(share, ratio):
    """Both teams read as fast as they can, and equally fast."""
    teams = (Team("vision", share, 0), Team("speech", 1.0, 0))
    core = two_teams(places=64, steps_s=(0.2, 0.2), teams=teams, cache_gb=0.4).core
    held = {key.dataset.decode(): samples.resident_bytes for key, samples in core.state.sets.items()}
    assert held["images"] / held["sounds"] == pytest.approx(ratio, rel=0.1)
    assert core.state.dropped_samples > 10_000
