"""Which executors can produce a dataset: each is tried alone, and one that can is enough."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from superdl.coordinator.executors import ExecutorError
from superdl.coordinator.executors import eligibility as eligibility_module
from superdl.coordinator.executors import manager as manager_module
from superdl.coordinator.executors import preflight as preflight_module
from superdl.coordinator.executors.eligibility import Eligibility
from superdl.coordinator.executors.preflight import Preflight
from superdl.coordinator.executors.ray_executor import RayExecutor
from superdl.super_wire.errors import ConfigError, SourceForbiddenError
from superdl.super_wire.ids import ID_BYTES
from superdl.super_wire.request import Outcome
from tests.coordinator.executors.test_preflight import Remote, dataset_of, explain
from tests.coordinator.running import ENOUGH_S, ScriptedExecutor, manager_of

REFUSE = explain(Outcome.REFUSED, "403: grant it")


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(preflight_module, "_PAUSE_S", 0.0)


def using(executors, work):
    async def body():
        manager = await manager_of(*executors)
        preflights = [
            Preflight(one, "redis://cache", region_of=lambda _bucket: "") for one in manager.executors
        ]
        eligibility = Eligibility(manager.executors, preflights)
        try:
            async with asyncio.timeout(ENOUGH_S):
                return await work(eligibility)
        finally:
            await eligibility.close()
            await manager.close()

    return asyncio.run(body())


@pytest.fixture
def remotes(valkey):
    one, two = Remote(valkey.unix_url), Remote(valkey.unix_url)
    one.name, two.name = "one", "two"
    return one, two


def test_all_that_pass_are_fit(remotes):
    async def work(eligibility):
        dataset = dataset_of()
        assert not eligibility.is_known(dataset)
        await eligibility.check(dataset, ENOUGH_S)
        return eligibility.is_known(dataset), eligibility.ineligible(dataset), eligibility.warnings(dataset)

    assert using(remotes, work) == (True, frozenset(), ())


def test_one_that_may_not_read_is_left_out_with_a_warning(remotes, caplog):
    remotes[0].edit = REFUSE

    async def work(eligibility):
        dataset = dataset_of()
        await eligibility.check(dataset, ENOUGH_S)
        return eligibility.is_known(dataset), eligibility.ineligible(dataset), eligibility.warnings(dataset)

    passed, ineligible, warnings = using(remotes, work)
    assert (passed, ineligible) == (True, {0})
    assert warnings == (
        "the executor one is left out: functions may not read s3://photos/train: 403: grant it",
    )
    assert "the executor one is left out for s3://photos/train" in caplog.text


def test_where_all_fail_the_first_says_why_and_all_are_tried_again(remotes):
    remotes[0].edit = remotes[1].edit = REFUSE

    async def work(eligibility):
        dataset = dataset_of()
        with pytest.raises(SourceForbiddenError, match="grant it"):
            await eligibility.check(dataset, ENOUGH_S)
        assert not eligibility.is_known(dataset)
        remotes[0].edit = lambda result: result
        await eligibility.check(dataset, ENOUGH_S)
        return eligibility.ineligible(dataset)

    assert using(remotes, work) == {1}


def test_one_that_failed_is_tried_again_for_a_later_run(remotes, monkeypatch):
    remotes[0].edit = REFUSE

    async def work(eligibility):
        dataset = dataset_of()
        await eligibility.check(dataset, ENOUGH_S)
        remotes[0].edit = lambda result: result
        asked = len(remotes[0].requests)
        await eligibility.check(dataset, ENOUGH_S)
        assert len(remotes[0].requests) == asked, "not at once"
        assert eligibility.ineligible(dataset) == {0}
        later_s = eligibility._clock() + eligibility_module._AGAIN_S
        monkeypatch.setattr(eligibility, "_clock", lambda: later_s)
        await eligibility.check(dataset, ENOUGH_S)
        return eligibility.ineligible(dataset), eligibility.is_known(dataset)

    assert using(remotes, work) == (frozenset(), True)


def test_files_are_for_the_functions_of_this_machine(remotes, valkey):
    async def work(eligibility):
        eligibility.check_source("file:///data")
        dataset = dataset_of(bucket="file:///data")
        await eligibility.check(dataset, ENOUGH_S)
        return eligibility.ineligible(dataset), eligibility.is_known(dataset), eligibility.warnings(dataset)

    remotes[0].name, remotes[0].files_remedy = "ray", RayExecutor.files_remedy
    ineligible, passed, warnings = using([remotes[0], ScriptedExecutor(valkey.unix_url)], work)
    assert (ineligible, passed) == ({0}, True)
    [warning] = warnings
    assert "the executor ray is left out: its functions do not see" in warning
    assert "SUPER_RAY_SHARED_FILES=1 (--ray-shared-files)" in warning
    assert not remotes[0].requests


def test_a_directory_that_no_function_sees_is_refused(remotes):
    async def work(eligibility):
        with pytest.raises(ConfigError, match="is a directory of the coordinator's machine"):
            eligibility.check_source("file:///data")

    using(remotes, work)


async def all_there(ids):
    return np.ones(len(ids) // ID_BYTES, dtype=np.int64)


def using_records(executors, work):
    """As after a coordinator's restart: the cache holds samples."""

    async def body():
        manager = await manager_of(*executors)
        for executor in executors:
            executor.region = ""
        eligibility = Eligibility.of(manager.executors, "redis://cache", all_there)
        try:
            async with asyncio.timeout(ENOUGH_S):
                return await work(eligibility)
        finally:
            await eligibility.close()
            await manager.close()

    return asyncio.run(body())


def test_records_say_nothing_of_who_made_them(remotes):
    remotes[1].edit = REFUSE

    async def work(eligibility):
        dataset = dataset_of()
        await eligibility.check(dataset, ENOUGH_S)
        return eligibility.ineligible(dataset)

    assert using_records(remotes, work) == {1}
    assert using_records(remotes[1:], work) == frozenset(), "its own, where it is alone"


def test_a_dataset_of_which_there_are_records_is_not_refused(remotes):
    remotes[0].edit = remotes[1].edit = REFUSE

    async def work(eligibility):
        dataset = dataset_of()
        await eligibility.check(dataset, ENOUGH_S)
        return (
            eligibility.is_known(dataset),
            eligibility.ineligible(dataset),
            len(eligibility.warnings(dataset)),
        )

    assert using_records(remotes, work) == (True, frozenset(), 2)


class Late(Remote):
    """Starts when the test says so."""

    name = "late"

    def __init__(self, cache):
        super().__init__(cache)
        self.comes = False

    async def start(self):
        if not self.comes:
            raise ExecutorError("asleep")


@pytest.fixture
def no_pauses(monkeypatch):
    monkeypatch.setattr(manager_module, "_FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(manager_module, "_LONGEST_PAUSE_S", 0.0)


async def until_told(eligibility, dataset):
    """What the core is told, second by second, until trials that come late have ended."""
    told = []
    eligibility.tell_changes([dataset], told.append)
    while eligibility._late:
        await asyncio.wait(eligibility._late.values())
        eligibility.tell_changes([dataset], told.append)
    return [event.executors for event in told]


@pytest.mark.usefixtures("no_pauses")
@pytest.mark.parametrize(("edit", "changes"), [(lambda result: result, [{1}, set()]), (REFUSE, [{1}])])
def test_one_that_comes_later_is_tried_then_and_the_core_is_told(remotes, valkey, edit, changes):
    """It gets nothing before it was tried."""
    late = Late(valkey.unix_url)
    late.edit = edit

    async def work(eligibility):
        dataset = dataset_of()
        await eligibility.check(dataset, ENOUGH_S)
        assert eligibility.is_known(dataset)
        assert eligibility.opened(dataset) == frozenset()
        assert eligibility.warnings(dataset) == ("the executor late is missing: asleep",)
        late.comes = True
        while eligibility._executors[1].absence:  # noqa: ASYNC110  # nobody tells of it
            await asyncio.sleep(0)
        assert eligibility.is_known(dataset), "it holds no job up"
        assert not late.requests
        told = await until_told(eligibility, dataset)
        assert late.requests
        return told, eligibility.ineligible(dataset), eligibility.warnings(dataset)

    told, left_out, warnings = using([remotes[0], late], work)
    assert told == changes
    assert left_out == changes[-1]
    assert len(warnings) == len(left_out), "that it was missing is told no more"


async def no_nodes(_request):
    raise ExecutorError("no nodes")


def test_a_trial_that_told_nothing_is_made_again(remotes):
    remotes[1].before = no_nodes

    async def work(eligibility):
        dataset = dataset_of()
        await eligibility.check(dataset, ENOUGH_S)
        assert eligibility.ineligible(dataset) == frozenset()
        assert "no function took the request: no nodes" in eligibility.warnings(dataset)[0]
        eligibility.opened(dataset)
        remotes[1].before, remotes[1].edit = None, REFUSE
        return await until_told(eligibility, dataset), eligibility.warnings(dataset)

    told, warnings = using(remotes, work)
    assert told == [{1}]
    assert warnings == (
        "the executor two is left out: functions may not read s3://photos/train: 403: grant it",
    )


def test_one_that_passes_while_nobody_waits_is_fit(remotes, monkeypatch):
    remotes[0].edit = REFUSE

    async def work(eligibility):
        dataset = dataset_of()
        await eligibility.check(dataset, ENOUGH_S)
        remotes[0].edit = lambda result: result
        later_s = eligibility._clock() + eligibility_module._AGAIN_S
        monkeypatch.setattr(eligibility, "_clock", lambda: later_s)
        await eligibility.check(dataset, 0.0)
        await asyncio.wait(eligibility._preflights[0]._under_way.values())
        return eligibility.ineligible(dataset), eligibility.warnings(dataset)

    assert using(remotes, work) == (frozenset(), ())


def test_a_directory_that_ray_alone_would_read_names_the_setting(remotes):
    async def work(eligibility):
        with pytest.raises(ConfigError, match=r"set SUPER_RAY_SHARED_FILES=1 \(--ray-shared-files\)"):
            eligibility.check_source("file:///data")

    remotes[0].name, remotes[0].files_remedy = "ray", RayExecutor.files_remedy
    using([remotes[0]], work)
