"""Run the core in many seeded worlds with faults. A failing seed replays exactly.

To replay one: ``python -m pytest tests/simulation/test_world.py -k seed-17``.
"""

import itertools
import math
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from superdl.coordinator.core import CoreSettings, ExecutorFacts, Plan, footprint
from superdl.experiments.simulator.world_model import DatasetModel, FunctionsModel, JobScript, WorldModel
from tests.simulation.checked_world import CheckedWorld
from tests.simulation.drawn_model import Faults
from tests.simulation.drawn_worlds import draw_world, in_shards

ROOT = Path(__file__).resolve().parents[2]

PRINT_LOG = """
from tests.simulation.drawn_worlds import draw_world
from tests.simulation.checked_world import CheckedWorld
for seed in range(6):
    print(*CheckedWorld(draw_world(seed, small=True)).run().log, sep="\\n")
"""


def small(seed):
    return draw_world(seed, small=True)


def sharded(seed):
    return in_shards(small(seed))


def drawn(numbers, *marks, make=small):
    """Return a test case for each of these seeds."""
    return [pytest.param(make, seed, id=f"seed-{seed}", marks=marks) for seed in numbers]


@pytest.mark.parametrize(
    ("make", "seed"),
    [
        # Seed 346: a restarted reader is behind the eight epochs that others look ahead over.
        # Seed 8965: a rank waits for a cheaper executor again after its first wait has ended.
        *drawn([*range(100), 346, 8965]),
        *drawn(range(40), make=sharded),
        *drawn(range(100, 3000), pytest.mark.slow),
        *drawn(range(40, 3000), pytest.mark.slow, make=sharded),
        *drawn(range(300), pytest.mark.slow, make=draw_world),
        *drawn(range(3000, 13_000), pytest.mark.soak),
    ],
)
def test_promises_hold(make, seed):
    CheckedWorld(make(seed)).run()


def decodes_once(model):
    """Check that functions decode no sample twice, in shards too. Return the world without faults."""
    datasets = {
        name: replace(data, undecodable=frozenset(), poisonous=frozenset(), random=False)
        for name, data in model.datasets.items()
    }
    plain = replace(model, datasets=datasets, faults=Faults())
    for each in (plain, in_shards(plain)):
        world = CheckedWorld(each).run()
        decoded = sum(executor.usage.samples_produced for executor in world.executors)
        assert 0 < decoded <= sum(data.size for data in datasets.values())
    return plain


@pytest.mark.parametrize("seed", range(0, 40, 4), ids="seed-{}".format)
def test_without_faults_and_with_room_every_sample_is_produced_once(seed):
    drawn = draw_world(seed, small=True)
    settings = replace(drawn.settings, budget_bytes=10**12, hedge_share=0.0)
    functions = replace(drawn.functions, queues=True, per_s=math.inf, burst=None, timeout_s=math.inf)
    decodes_once(replace(drawn, settings=settings, functions=functions, left_over=0.0, stored=0.0))


@pytest.mark.parametrize("seed", range(0, 40, 4), ids="seed-{}".format)
def test_with_a_healthy_store_every_sample_is_decoded_once_even_with_a_small_cache(seed):
    drawn = draw_world(seed, small=True)
    settings = replace(drawn.settings, store=True, hedge_share=0.0, executors=(ExecutorFacts(),))
    settings = replace(settings, max_usd=math.inf, max_usd_per_hour=math.inf)
    functions = FunctionsModel(capacity=2, overhead_s=0.004, decode_s=0.001, restore_s=0.0001)
    alone = replace(drawn, settings=settings, functions=functions, others=(), unfit={}, left_over=0.0)
    plain = decodes_once(replace(alone, stored=0.0))
    again = CheckedWorld(replace(plain, stored=1.0)).run()
    assert not any(executor.usage.samples_produced for executor in again.executors)


def blind_functions(left_over, stored, **settings):
    """Two epochs with functions that do not see the store, and a process that saves what they decode."""
    plan = Plan(size=1000, batch_size=10, seed=3)
    job = JobScript("job", b"a", plan, 0.0, 0.02, 2, 8, [(epoch, 0, 100) for epoch in range(2)])
    data = {b"a": DatasetModel(b"a", random=False, record_bytes=np.full(1000, 1000))}
    executors = (ExecutorFacts("lambda", sees_store=False), ExecutorFacts(decodes=False))
    functions = FunctionsModel(8, overhead_s=0.02, decode_s=0.01)
    others = (FunctionsModel(2, overhead_s=0.01, restore_s=0.0005),)
    core = CoreSettings(10**9, hedge_share=0.0, executors=executors, store=True, **settings)
    return WorldModel(1, core, functions, data, (job,), others=others, left_over=left_over, stored=stored)


@pytest.mark.parametrize("left_over", [0.0, 0.5], ids="left-over-{}".format)
def test_samples_decoded_without_store_access_are_saved_to_the_store(left_over):
    """Cover samples that an earlier coordinator left in the cache, once they are requested."""
    world = CheckedWorld(blind_functions(left_over, stored=0.0)).run()
    assert world.store.scanned(b"a").indices.size == 1000
    assert world.executors[0].usage.samples_produced == pytest.approx(1000 * (1 - left_over), abs=60)
    again = CheckedWorld(blind_functions(0.0, stored=1.0)).run()
    assert again.executors[0].usage.invocations == 0
    assert again.executors[1].usage.samples_restored == 1000
    read_only = CheckedWorld(blind_functions(0.0, 0.0, store_read_only=True)).run()
    assert read_only.store.scanned(b"a").indices.size == 0


def test_runs_do_not_depend_on_the_hash_seed():
    logs = [
        subprocess.run(
            [sys.executable, "-c", PRINT_LOG],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
            timeout=100,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert logs[0] == logs[1]
    assert logs[0].count(b"\n") > 20


@pytest.mark.parametrize("seed", range(12), ids="seed-{}".format)
def test_resizing_the_cache_starves_no_reader(seed):
    drawn = draw_world(seed, small=True)
    datasets = {name: replace(data, poisonous=frozenset()) for name, data in drawn.datasets.items()}
    whole = sum(int(footprint(data.record_bytes).sum()) for data in datasets.values())
    settings = replace(drawn.settings, budget_bytes=max(whole, drawn.settings.budget_bytes), max_usd=math.inf)
    settings = replace(settings, max_usd_per_hour=math.inf)
    functions = FunctionsModel(capacity=2, overhead_s=0.004, decode_s=0.001)
    shares = random.Random(seed)
    resizes = tuple((at_s, shares.choice((0.2, 0.5, 1.0, 2.0))) for at_s in (0.5, 2.0, 4.0, 6.0))
    model = replace(
        drawn,
        settings=replace(settings, executors=settings.executors[:1]),
        functions=functions,
        others=(),
        unfit={},
        datasets=datasets,
        faults=Faults(resizes=resizes),
        cache_refuses=True,
        read_timeout_s=10.0,
    )
    world = CheckedWorld(model).run()
    assert not world.under_way


class WorldThatCountsGets(CheckedWorld):
    """A world that records the number of GETs at the end of each pass."""

    def __init__(self, model):
        self.gets = {}
        super().__init__(model)

    def post(self, *events):
        super().post(*events)
        passes = len(self.trainers["job"][0].passes)
        self.gets[passes] = sum(executor.usage.source_requests for executor in self.executors)


@pytest.mark.parametrize(
    ("where", "step_s"),
    [
        ("cache", 0.001),
        *(
            pytest.param(where, step_s, marks=pytest.mark.slow)
            for where, step_s in [("cache", 0.05), *itertools.product(["bucket", "directory"], [0.05, 0.001])]
        ),
    ],
)
def test_a_cold_epoch_of_shards_needs_one_get_per_run_after_the_first_look_ahead(where, step_s):
    size, batch, lookahead, run = 12_000, 32, 32, 150
    data = DatasetModel(
        b"a",
        random=False,
        record_bytes=np.full(size, 10_000),
        source_bytes=30_000,
        runs=np.arange(0, size, run),
    )
    plan = Plan(size=size, batch_size=batch, seed=3)
    passes = [(epoch, 0, plan.batches_per_epoch) for epoch in range(2)]
    share = 1.1 if where == "cache" else 0.5
    core = CoreSettings(
        int(share * footprint(data.record_bytes).sum()),
        lookahead_batches=lookahead,
        request_samples=512,
        hedge_share=0.0,
        store=where != "cache",
        whole_packs=where == "bucket",
    )
    job = JobScript("job", b"a", plan, 0.0, step_s, 2, 8, passes, straight=where == "directory")
    functions = FunctionsModel(8, overhead_s=0.004, decode_s=0.001, restore_s=0.0001)
    model = WorldModel(1, core, functions, {b"a": data}, (job,))
    world = WorldThatCountsGets(model).run()
    assert world.gets[2] == world.gets[1] <= size / run + 1.5 * lookahead * batch
    first = world.trainers["job"][0].passes[0]
    alone = replace(model, datasets={b"a": replace(data, runs=None)}, jobs=(replace(job, passes=passes[:1]),))
    without = WorldThatCountsGets(alone).run()
    first_without = without.trainers["job"][0].passes[0]
    assert without.gets[1] == size
    assert first.first_wait_s == first_without.first_wait_s
    assert first.ended_s <= 1.05 * first_without.ended_s
