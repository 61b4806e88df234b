"""Draw data, jobs, functions and faults from a seed, independently of PYTHONHASHSEED."""

import math
import random
from dataclasses import replace

import numpy as np

from superdl.coordinator.core import NO_TEAM, CoreSettings, ExecutorFacts, Plan, Prices, Team, footprint
from superdl.experiments.simulator.world_model import JobScript
from superdl.super_wire.draws import Draws
from tests.simulation.drawn_model import DrawnDataset, DrawnFunctions, DrawnModel, Faults


def draw_world(seed, *, small=False):
    """Return this seed's world, independent of PYTHONHASHSEED. A small one takes a few hundred events."""
    rng = random.Random(seed)
    datasets = {name: _draw_dataset(rng, name, small=small) for name in (b"a", b"b")[: rng.choice((1, 1, 2))]}
    jobs = tuple(
        _draw_job(rng, f"job-{number}", datasets, small=small) for number in range(rng.choice((1, 1, 2, 3)))
    )
    by_sampler = random.Random(f"{seed} orders")  # a separate generator, so that older seeds keep their draws
    jobs = tuple(_ordered(by_sampler, job, datasets[job.dataset].size) for job in jobs)
    read = {job.dataset for job in jobs}
    whole = sum(int(footprint(datasets[name].record_bytes).sum()) for name in sorted(read))
    largest = max(int(footprint(datasets[name].record_bytes).max()) for name in sorted(read))
    batch = max(job.plan.batch_size for job in jobs)
    money = _draw_money(rng)
    faults = _draw_faults(rng)
    share = rng.choice((0.3, 0.6, 1.2, 3.0) if small else (0.02, 0.1, 0.25, 0.6, 1.2, 3.0))
    model = DrawnModel(
        seed=seed,
        settings=CoreSettings(
            budget_bytes=max(int(whole * share), largest * max(2, batch // 2)),
            lookahead_batches=rng.choice((2, 4, 16, 64)),
            request_samples=rng.choice((4, 16, 64) if small else (1, 4, 16, 64)),
            attempts=rng.randint(1, 4),
            backoff_s=rng.choice((0.05, 0.2)),
            backoff_max_s=1.0,
            tombstone_ttl_s=rng.choice((2.0, 20.0)),
            forget_s=60.0,
            hedge_share=rng.choice((0.0, 0.05, 0.5)),
            hedge_quantile=rng.choice((0.5, 0.95)),
            lease_s=rng.choice((2.0, 15.0)),
            **money,
        ),
        functions=_draw_functions(rng, small=small),
        datasets=datasets,
        jobs=jobs,
        faults=faults,
        left_over=rng.choice((0.0, 0.0, 0.0, 0.5, 1.0)),
    )
    # Drawn from its own generator, so that the other worlds do not change.
    model = _mixed(random.Random(f"mix-{seed}"), model, small=small)
    model = _with_store(random.Random(f"store-{seed}"), model)
    model = _with_blind_functions(random.Random(f"blind-{seed}"), model)
    return _of_teams(random.Random(f"teams-{seed}"), model)


def _of_teams(rng, model):
    """Put the jobs of every third world into teams, with or without shares and priorities."""
    if rng.random() < 0.65:
        return model
    names = "vision", "speech", NO_TEAM
    teams = tuple(Team(name, rng.choice((0.5, 1.0, 3.0)), rng.choice((0, 0, 1))) for name in names[:2])
    jobs = tuple(replace(job, team=rng.choice(names)) for job in model.jobs)
    return replace(model, jobs=jobs, settings=replace(model.settings, teams=teams))


def in_shards(model):
    """Return the same world with its samples in shards, each of which has a few runs of neighbours."""
    rng = random.Random(f"shards-{model.seed}")
    datasets = {
        name: replace(data, runs=np.array([0, *(at for at in range(1, data.size) if rng.random() < share)]))
        for name, data in model.datasets.items()
        for share in (rng.choice((0.05, 0.2, 0.5)),)
    }
    return replace(model, datasets=datasets)


def _mixed(rng, model, *, small):
    """Add one executor, sometimes two, to every third world. Any may be gone or wrong for a while."""
    if rng.random() < 0.65:
        return model
    fleet = [
        model.functions,
        *(_draw_functions(rng, small=small) for _ in range(rng.choice((1, 1, 2)))),
    ]
    for number in range(len(fleet)):
        if rng.random() < 0.3:
            gone_s = rng.uniform(0.0, 3.0)
            fleet[number] = replace(fleet[number], gone_s=((gone_s, gone_s + rng.choice((0.5, 5.0, 60.0))),))
        if rng.random() < 0.2 and number:  # never all at once, or tombstones would be correct
            fleet[number] = replace(fleet[number], wrong_until_s=rng.choice((0.5, 5.0, 60.0)))
    settings, first = model.settings, model.settings.executors[0]
    dearer = [
        ExecutorFacts(f"executor-{number}", replace(first.prices, gb_s=first.prices.gb_s * 2**number))
        for number in range(1, len(fleet))
    ]
    unfit = {name: frozenset((rng.randrange(len(fleet)),)) for name in model.datasets if rng.random() < 0.3}
    return replace(
        model,
        settings=replace(settings, executors=(first, *dearer)),
        functions=fleet[0],
        others=tuple(fleet[1:]),
        unfit=unfit,
    )


def _with_store(rng, model):
    """Add a store with faults of its own to every second world. Some jobs and executors may not see it."""
    if rng.random() < 0.5:
        return model

    def times():
        return tuple(rng.uniform(0, 10) for _ in range(rng.choice((1, 2)))) if rng.random() < 0.2 else ()

    def spans():
        return tuple((at_s, at_s + rng.choice((0.5, 3.0, 60.0))) for at_s in times())

    executors = [
        replace(
            each,
            prices=replace(each.prices, store_put=each.prices.source_request * 10),
            sees_store=len(model.fleet) == 1 or rng.random() < 0.7,
        )
        for each in model.settings.executors
    ]
    whole_packs = rng.random() < 0.4
    faults = replace(
        model.faults,
        rots=rng.choice((0.0, 0.0, 0.1, 0.5)),
        pack_losses_s=times(),
        prunes_s=times(),
        store_gone_s=spans(),
        store_full_s=spans(),
    )
    fleet = [replace(each, restore_s=rng.choice((0.0001, 0.01))) for each in model.fleet]
    straight = 0.0 if whole_packs else rng.choice((0.0, 0.5, 1.0))
    return replace(
        model,
        settings=replace(model.settings, store=True, whole_packs=whole_packs, executors=tuple(executors)),
        functions=fleet[0],
        others=tuple(fleet[1:]),
        jobs=tuple(replace(job, straight=rng.random() < straight) for job in model.jobs),
        faults=faults if rng.random() < 0.7 else model.faults,
        stored=rng.choice((0.0, 0.5, 1.0)),
    )


def _with_blind_functions(rng, model):
    """In every third world with a store, let only a store-only executor see it. That one may be gone too."""
    if not model.settings.store or rng.random() < 0.65:
        return model
    gone_s = rng.uniform(0.0, 3.0)
    spans = ((gone_s, gone_s + rng.choice((0.5, 5.0, 60.0))),) if rng.random() < 0.2 else ()
    store_only = DrawnFunctions(
        capacity=rng.choice((1, 2, 4)),
        overhead_s=0.004,
        restore_s=rng.choice((0.0001, 0.01)),
        gone_s=spans,
    )
    blind = [replace(each, sees_store=False) for each in model.settings.executors]
    return replace(
        model,
        settings=replace(model.settings, executors=(*blind, ExecutorFacts("store", decodes=False))),
        others=(*model.others, store_only),
    )


def _draw_money(rng):
    """Draw prices at which a run costs a few dollars, and occasionally a spending cap."""
    if rng.random() < 0.5:
        return {}
    prices = Prices(
        invocation=rng.choice((0.0, 0.01)),
        gb_s=rng.choice((0.0, 0.1)),
        source_request=rng.choice((0.0, 0.001)),
        source_gb=rng.choice((0.0, 10.0)),
        record_gb=rng.choice((0.0, 10.0)),
        hour=rng.choice((0.0, 5.0)),
    )
    money = {"executors": (ExecutorFacts("first", prices),)}
    if rng.random() < 0.2:
        money["max_usd"] = rng.choice((0.05, 0.5))
    if rng.random() < 0.2:
        money["max_usd_per_hour"] = rng.choice((1.0, 100.0))
    return money


def _draw_functions(rng, *, small):
    """Draw a process pool, or functions with cold starts, a ramp and throttling above it."""
    capacity = rng.choice((1, 2, 8))
    queues = rng.random() < 0.6
    ramps = not queues and rng.random() < 0.5
    return DrawnFunctions(
        capacity=capacity,
        queues=queues,
        burst=rng.randint(1, capacity) if ramps else None,
        per_s=rng.choice((0.5, 5.0)) if ramps else math.inf,
        cold_start_s=0.0 if queues else rng.choice((0.0, 0.3, 2.0)),
        warm_s=rng.choice((1.0, 300.0)),
        overhead_s=rng.choice((0.004, 0.04) if small else (0.004, 0.04, 0.4)),
        fetch_s=rng.choice((0.0, 0.002)),
        decode_s=0.001,
        stragglers=rng.choice((0.0, 0.0, 0.02, 0.1)),
        timeout_s=rng.choice((math.inf, math.inf, 5.0)),
    )


def _draw_dataset(rng, name, *, small):
    size = rng.choice((1, 7, 20, 40) if small else (1, 7, 20, 60, 120))
    mean = rng.choice((100, 5_000, 150_000))
    if rng.random() < 0.6:
        record_bytes = np.full(size, mean, dtype=np.int64)
    else:
        record_bytes = np.array([rng.randint(mean // 2, mean * 3 // 2) for _ in range(size)], dtype=np.int64)
    bad = rng.random() < 0.2
    return DrawnDataset(
        name=name,
        random=rng.random() < 0.3,
        record_bytes=record_bytes,
        source_bytes=1000,
        undecodable=frozenset(rng.sample(range(size), max(1, size // 20))) if bad else frozenset(),
        poisonous=frozenset({rng.randrange(size)}) if rng.random() < 0.1 else frozenset(),
    )


def _draw_job(rng, name, datasets, *, small):
    dataset = datasets[rng.choice(sorted(datasets))]
    batch_size, replicas = rng.choice((3, 8, 16) if small else (1, 3, 8, 16)), rng.choice((1, 1, 2, 3))
    plan = Plan(
        size=dataset.size,
        batch_size=batch_size,
        replicas=replicas,
        seed=rng.randrange(4),
        shuffle=rng.random() < 0.8,
        drop_last=rng.random() < 0.3 and batch_size * replicas <= dataset.size,
    )
    return JobScript(
        name=name,
        dataset=dataset.name,
        plan=plan,
        starts_s=rng.choice((0.0, 0.0, 1.0, 5.0)),
        step_s=rng.choice((0.001, 0.02, 0.3)),
        workers=rng.choice((1, 2, 4)),
        page=rng.choice((1, 4, 64)),
        passes=_draw_passes(rng, plan.batches_per_epoch),
        ending=rng.choice(("close", "close", "vanish")),
        pause_s=rng.choice((0.0, 0.0, 3.0)),
    )


def _ordered(rng, job, size):
    """Return the job, or sometimes a copy that a user's sampler orders anew each epoch."""
    if job.plan.replicas > 1 or rng.random() < 0.7:
        return job
    orders, passes, epoch = {}, [], 0
    for _ in job.passes:
        lengths = [rng.randint(1, job.plan.batch_size) for _ in range(rng.randint(1, 8))]
        indices = np.array([rng.randrange(size) for _ in range(sum(lengths))])
        draws = Draws.in_order(indices, np.array(lengths))
        orders[epoch] = Plan(size, job.plan.batch_size, shuffle=False, draws=draws, only_epoch=epoch)
        first = rng.randrange(len(lengths)) if rng.random() < 0.3 else 0
        passes.append(
            (epoch, first, rng.randint(first, len(lengths)) if rng.random() < 0.3 else len(lengths))
        )
        epoch += rng.choice((1, 1, 3))
    return replace(job, plan=orders[0], orders=orders, passes=tuple(passes))


def _draw_passes(rng, batches):
    """Draw epochs that are consecutive, started midway, abandoned or rewound."""
    passes = []
    epoch = rng.choice((0, 0, 0, 3))
    for number in range(rng.choice((1, 2, 3))):
        first = rng.randrange(batches) if number == 0 and rng.random() < 0.2 else 0
        stop = rng.randint(first, batches) if rng.random() < 0.2 else batches
        passes.append((epoch, first, stop))
        epoch = max(0, epoch + rng.choice((1, 1, 1, 1, 0, -1, 5)))
    return tuple(passes)


def _draw_faults(rng):
    if rng.random() < 0.3:
        return Faults()

    def sometimes(*values):
        return rng.choice(values) if rng.random() < 0.3 else 0.0

    def times():
        return tuple(rng.uniform(0, 10) for _ in range(rng.choice((1, 2)))) if rng.random() < 0.15 else ()

    return Faults(
        crash=sometimes(0.02, 0.2),
        hang=sometimes(0.02, 0.1),
        throttle=sometimes(0.05, 0.5),
        unavailable=sometimes(0.05, 0.5),
        twice=sometimes(0.1, 1.0),
        sample_error=sometimes(0.01, 0.2),
        expired=sometimes(0.1),
        lost_report=sometimes(0.1, 0.5, 0.9),
        corrupt=sometimes(0.01),
        flushes_s=times(),
        outages_s=times(),
        evictions_s=times(),
        coordinator_deaths_s=times(),
    )
