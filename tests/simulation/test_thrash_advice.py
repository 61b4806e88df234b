"""Check thrash advice on mixes of jobs: the advised size ends the thrash, and 10% less does not."""

from __future__ import annotations

import random

import numpy as np
import pytest

from superdl.coordinator.core import Core, CoreSettings, Plan, Warn, footprint
from superdl.experiments.simulator.world import World
from superdl.experiments.simulator.world_model import DatasetModel, FunctionsModel, JobScript, WorldModel

_EPOCHS = 4  # of the slowest job


class _Listening(Core):
    """A core that remembers the size it needed when it first warned of thrash."""

    advised_bytes = 0

    def handle_all(self, several, now):
        actions = super().handle_all(several, now)
        if not self.advised_bytes and any("thrash" in it.message for it in actions if isinstance(it, Warn)):
            self.advised_bytes = self.needed_bytes
        return actions


class _ListeningWorld(World):
    def make_core(self):
        return _Listening(self.model.settings)


def advised_by(drawn, budget_bytes):
    """Train all jobs with this cache budget. Return the size advised by the first thrash warning, else 0."""
    seed, datasets, jobs, lookahead = drawn
    model = WorldModel(
        seed=seed,
        settings=CoreSettings(budget_bytes=budget_bytes, lookahead_batches=lookahead, hedge_share=0.0),
        functions=FunctionsModel(
            capacity=8, overhead_s=0.004, fetch_s=0.002, fetch_parallel=4, decode_s=0.0005
        ),
        datasets=datasets,
        jobs=jobs,
        until_s=_EPOCHS * max(job.plan.batches_per_epoch * job.step_s for job in jobs),
    )
    return _ListeningWorld(model).run().core.advised_bytes


def draw_mix(seed):
    """Draw one to four jobs with different paces over one to three datasets, some with random recipes."""
    rng = random.Random(seed)
    datasets = {}
    for name in (b"a", b"b", b"c")[: rng.choice((1, 2, 2, 3))]:
        size = rng.choice((1500, 3000, 6000))
        # Avoid caches of only a few batches, where a single batch is already a tenth of the size.
        mean = rng.choice((5_000, 12_000) if datasets else (12_000, 150_000))
        sizes = np.full(size, mean)
        if rng.random() < 0.4:
            sizes = np.array([rng.randint(mean // 2, mean * 3 // 2) for _ in range(size)])
        datasets[name] = DatasetModel(name, bool(datasets) and rng.random() < 0.5, sizes.astype(np.int64))
    jobs = []
    recurring = [name for name in sorted(datasets) if not datasets[name].random]
    more = [rng.choice(recurring) for _ in range(rng.choice((0, 0, 1, 2)))]
    for number, name in enumerate([*sorted(datasets), *more]):
        data = datasets[name]
        plan = Plan(
            size=data.size,
            batch_size=rng.choice((32, 64)),
            replicas=rng.choice((1, 1, 2)),
            seed=number,
            shuffle=rng.random() < 0.9,
            drop_last=rng.random() < 0.5,
        )
        step_s = rng.choice((0.02, 0.05, 0.1))
        passes = tuple((epoch, 0, plan.batches_per_epoch) for epoch in range(1000))
        jobs.append(JobScript(f"job-{number}", data.name, plan, rng.choice((0.0, 0.5)), step_s, 2, 8, passes))
    return seed, datasets, tuple(jobs), rng.choice((8, 64))


SHARE = 0.7


@pytest.mark.parametrize(
    "seed", [13, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (0, 2))], ids="mix-{}".format
)
def test_the_advised_size_ends_thrashing_and_a_tenth_less_does_not(seed):
    drawn = draw_mix(seed)
    recurring = [data.record_bytes for data in drawn[1].values() if not data.random]
    short_bytes = int(SHARE * sum(int(footprint(record_bytes).sum()) for record_bytes in recurring))
    advised_bytes = advised_by(drawn, short_bytes)
    assert advised_bytes > short_bytes
    assert not advised_by(drawn, advised_bytes)
    assert advised_by(drawn, int(advised_bytes / 1.1))
