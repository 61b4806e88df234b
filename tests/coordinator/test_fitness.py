"""Which executors can produce a dataset: each is tried alone, and one that can is enough."""

from __future__ import annotations

import asyncio

import pytest

from coordinator import fitness as fitness_module
from coordinator import trials as trials_module
from coordinator.fitness import Fitness
from coordinator.trials import Trials
from super_wire.errors import ConfigError, SourceForbiddenError
from super_wire.request import Outcome
from tests.coordinator.running import ENOUGH_S, ScriptedExecutor, crew_of
from tests.coordinator.test_trials import Remote, dataset_of, explain

REFUSE = explain(Outcome.REFUSED, "403: grant it")


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(trials_module, "_PAUSE_S", 0.0)


def using(executors, work):
    async def body():
        crew = await crew_of(*executors)
        trials = [Trials(post, "redis://cache", region_of=lambda _bucket: "") for post in crew.posts]
        fitness = Fitness(crew.posts, trials)
        try:
            async with asyncio.timeout(ENOUGH_S):
                return await work(fitness)
        finally:
            await fitness.close()
            await crew.close()

    return asyncio.run(body())


@pytest.fixture
def remotes(valkey):
    one, two = Remote(valkey.unix_url), Remote(valkey.unix_url)
    one.name, two.name = "one", "two"
    return one, two


def test_all_that_pass_are_fit(remotes):
    async def work(fitness):
        dataset = dataset_of()
        assert not fitness.passed(dataset)
        await fitness.take(dataset, ENOUGH_S)
        return fitness.passed(dataset), fitness.unfit(dataset), fitness.warnings(dataset)

    assert using(remotes, work) == (True, frozenset(), ())


def test_one_that_may_not_read_is_left_out_with_a_warning(remotes, caplog):
    remotes[0].edit = REFUSE

    async def work(fitness):
        dataset = dataset_of()
        await fitness.take(dataset, ENOUGH_S)
        return fitness.passed(dataset), fitness.unfit(dataset), fitness.warnings(dataset)

    passed, unfit, warnings = using(remotes, work)
    assert (passed, unfit) == (True, {0})
    assert warnings == (
        "the executor one is left out: functions may not read s3://photos/train: 403: grant it",
    )
    assert "the executor one is left out for s3://photos/train" in caplog.text


def test_where_all_fail_the_first_says_why_and_all_are_tried_again(remotes):
    remotes[0].edit = remotes[1].edit = REFUSE

    async def work(fitness):
        dataset = dataset_of()
        with pytest.raises(SourceForbiddenError, match="grant it"):
            await fitness.take(dataset, ENOUGH_S)
        assert not fitness.passed(dataset)
        remotes[0].edit = lambda result: result
        await fitness.take(dataset, ENOUGH_S)
        return fitness.unfit(dataset)

    assert using(remotes, work) == {1}


def test_one_that_failed_is_tried_again_for_a_later_run(remotes, monkeypatch):
    remotes[0].edit = REFUSE

    async def work(fitness):
        dataset = dataset_of()
        await fitness.take(dataset, ENOUGH_S)
        remotes[0].edit = lambda result: result
        asked = len(remotes[0].requests)
        await fitness.take(dataset, ENOUGH_S)
        assert len(remotes[0].requests) == asked, "not at once"
        assert fitness.unfit(dataset) == {0}
        later_s = fitness._clock() + fitness_module._AGAIN_S
        monkeypatch.setattr(fitness, "_clock", lambda: later_s)
        await fitness.take(dataset, ENOUGH_S)
        return fitness.unfit(dataset), fitness.passed(dataset)

    assert using(remotes, work) == (frozenset(), True)


def test_files_are_for_the_functions_of_this_machine(remotes, valkey):
    async def work(fitness):
        fitness.admit("file:///data")
        dataset = dataset_of(bucket="file:///data")
        await fitness.take(dataset, ENOUGH_S)
        return fitness.unfit(dataset), fitness.passed(dataset)

    assert using([remotes[0], ScriptedExecutor(valkey.unix_url)], work) == ({0}, True)
    assert not remotes[0].requests


def test_a_directory_that_no_function_sees_is_refused(remotes):
    async def work(fitness):
        with pytest.raises(ConfigError, match="is a directory of the coordinator's machine"):
            fitness.admit("file:///data")

    using(remotes, work)
