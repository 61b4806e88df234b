"""Report what remote functions cannot do before a job opens. One capable executor is enough."""

import asyncio
import contextlib
import dataclasses
import logging

import numpy as np
import pytest

from superdl.coordinator.cache.cache import Cache
from superdl.coordinator.catalog.catalog import Catalog
from superdl.coordinator.catalog.dataset import Dataset, Listing
from superdl.coordinator.catalog.strings import PackedStrings
from superdl.coordinator.core import FailureKind
from superdl.coordinator.executors import eligibility as eligibility_module
from superdl.coordinator.executors import manager as manager_module
from superdl.coordinator.executors.base import ExecutorError
from superdl.coordinator.executors.eligibility import Eligibility
from superdl.coordinator.executors.workers import WorkersExecutor
from superdl.super_wire.errors import CacheError, ConfigError, SourceError, SourceForbiddenError
from superdl.super_wire.ids import ID_BYTES
from superdl.super_wire.keys import cache_key
from superdl.super_wire.request import Outcome
from tests.coordinator.running import ENOUGH_S, RECIPE, ScriptedExecutor, manager_of, record_of

KEYS = [f"cat/{number}.jpg" for number in range(9)]


def dataset_of(keys=KEYS, bucket="s3://photos"):
    packed = PackedStrings.pack(key.encode() for key in keys)
    versions = PackedStrings.pack(b"1" for _ in keys)
    labels = np.zeros(len(keys), dtype=np.int64)
    catalog = Catalog.build(bucket, packed, versions, labels, ("cat",))
    ids = np.frombuffer(catalog.sample_ids(RECIPE.digest), dtype=np.uint8).reshape(-1, ID_BYTES)
    return Dataset(b"d" * 16, RECIPE, Listing("s3://photos/train", "", catalog=catalog), ids)


class Remote(ScriptedExecutor):
    """An executor whose functions run elsewhere. It does not start while ``comes`` is unset."""

    remote = True
    region = "us-east-1"

    def __init__(self, cache, name="lambda"):
        super().__init__(cache)
        self.name = name
        self.comes = True

    async def start(self):
        if not self.comes:
            raise ExecutorError("asleep")

    def fails_with(self, error):
        async def fail(_request):
            raise error

        self.before = fail


def explain(outcome, message):
    """Return an edit that gives every sample this outcome and message."""

    def edit(result):
        count = len(result.outcomes)
        messages = {str(place): message for place in range(count)}
        return dataclasses.replace(result, outcomes=(outcome,) * count, messages=messages)

    return edit


def as_it_is(result):
    return result


REFUSE = explain(Outcome.REFUSED, "403: grant it")


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(eligibility_module, "_PAUSE_S", 0.0)
    monkeypatch.setattr(manager_module, "_FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(manager_module, "_LONGEST_PAUSE_S", 0.0)


@contextlib.asynccontextmanager
async def using(executors, *, region_of=lambda _bucket: "", **options):
    manager = await manager_of(*executors)
    eligibility = Eligibility(manager.executors, "redis://cache", region_of=region_of, **options)
    try:
        async with asyncio.timeout(ENOUGH_S):
            yield eligibility
    finally:
        await eligibility.close()
        await manager.close()


async def try_out(executor, **options):
    """Try out a dataset and return the warnings."""
    dataset = dataset_of()
    async with using([executor], **options) as eligibility:
        await eligibility.check(dataset, ENOUGH_S)
        assert eligibility.is_known(dataset)
        return " ".join(eligibility.warnings(dataset))


@pytest.fixture
def executor(valkey):
    return Remote(valkey.unix_url)


@pytest.fixture
def two(valkey):
    return Remote(valkey.unix_url, "one"), Remote(valkey.unix_url, "two")


def answer_by(executor, answer):
    """Have functions raise this error, or edit their answers this way."""
    if isinstance(answer, Exception):
        executor.fails_with(answer)
    else:
        executor.edit = answer


@pytest.mark.parametrize(
    ("answer", "error", "named"),
    [
        (REFUSE, SourceForbiddenError, "s3://photos/train"),
        (explain(Outcome.CACHE_ERROR, "NOPERM this user"), CacheError, "redis://cache"),
        (ExecutorError("no module their_steps", FailureKind.RAISED), ConfigError, "their_steps"),
    ],
)
async def test_a_dataset_that_all_functions_refuse_is_reported_and_retried(executor, answer, error, named):
    answer_by(executor, answer)
    async with using([executor]) as eligibility:
        dataset = dataset_of()
        for _ in range(2):
            with pytest.raises(error, match=named):
                await eligibility.check(dataset, ENOUGH_S)
            assert not eligibility.is_known(dataset)
        executor.edit, executor.before = as_it_is, None
        await eligibility.check(dataset, ENOUGH_S)
        assert eligibility.is_known(dataset)
    assert len(executor.requests) == 2 * 2 + 1


async def test_a_single_refused_sample_or_a_temporary_refusal_is_ignored(executor):
    executor.outcomes = {KEYS[0]: Outcome.REFUSED, KEYS[4]: Outcome.TOMBSTONE, KEYS[8]: Outcome.MISSING}
    assert await try_out(executor) == ""
    executor.requests.clear()
    executor.edit = lambda result: REFUSE(result) if len(executor.requests) == 1 else result
    assert await try_out(executor) == ""
    assert len(executor.requests) == 2


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        (explain(Outcome.SOURCE_ERROR, "the weather"), "the weather"),
        (explain(Outcome.EXPIRED, "the weather"), "time limit"),
        (ExecutorError("busy", FailureKind.THROTTLED), "busy"),
        (ExecutorError("30 s", FailureKind.TIMED_OUT), "VPC"),
    ],
)
async def test_temporary_failures_are_only_a_warning(executor, caplog, answer, named):
    answer_by(executor, answer)
    assert named in await try_out(executor)
    assert named in caplog.text


async def test_ranks_share_a_trial_and_closing_does_not_wait_for_it(executor):
    async with using([executor]) as eligibility:
        go_on, dataset = asyncio.Event(), dataset_of()
        executor.before = lambda _request: go_on.wait()
        await eligibility.check(dataset, 0.0)
        assert not eligibility.is_known(dataset)
        ranks = [asyncio.create_task(eligibility.check(dataset, ENOUGH_S)) for _ in range(4)]
        go_on.set()
        await asyncio.gather(*ranks)
        assert eligibility.is_known(dataset)
        assert len(executor.requests) == 1
        go_on.clear()
        await eligibility.check(dataset_of(KEYS[:3]), 0.0)
        async with asyncio.timeout(ENOUGH_S):
            await eligibility.close()


async def test_a_dataset_with_cached_samples_is_not_refused(two, valkey):
    """The cache holds samples already, as after a restart of the coordinator."""
    two[0].outcomes = two[1].outcomes = dict.fromkeys(KEYS, Outcome.REFUSED)
    dataset = dataset_of()

    async def with_cache(ids):
        cache = Cache(valkey.unix_url, owner="test")
        try:
            return await cache.audit(ids)
        finally:
            await cache.close()

    async def broken(_ids):
        raise CacheError("nobody answers")

    async with using(two, audit=with_cache) as eligibility:
        with pytest.raises(SourceForbiddenError):
            await eligibility.check(dataset, ENOUGH_S)
        with valkey.client() as client:
            sample_id = bytes(dataset.ids(np.array([8]), 0))
            client.set(cache_key(sample_id), record_of(KEYS[8], sample_id))
        await eligibility.check(dataset, ENOUGH_S)
        known, warnings = eligibility.is_known(dataset), eligibility.warnings(dataset)
        assert (known, eligibility.ineligible(dataset), len(warnings)) == (True, frozenset(), 2)
    with pytest.raises(SourceForbiddenError):
        await try_out(two[0], audit=broken)


@pytest.mark.parametrize(
    ("region", "named"),
    [("eu-west-3", "eu-west-3"), (SourceError("no answer"), "no answer"), ("us-east-1", "")],
)
async def test_a_bucket_in_another_region_is_a_warning(executor, caplog, region, named):
    def region_of(_bucket):
        if isinstance(region, Exception):
            raise region
        return region

    told = await try_out(executor, region_of=region_of)
    assert (named in told, bool(told)) == (True, bool(named))
    assert bool(told) == any(record.levelno == logging.WARNING for record in caplog.records)


async def test_an_executor_without_access_is_skipped_and_retried_later(two, caplog):
    two[0].edit, now_s = REFUSE, [0.0]

    async with using(two, clock=lambda: now_s[0]) as eligibility:
        dataset = dataset_of()
        assert not eligibility.is_known(dataset)
        await eligibility.check(dataset, ENOUGH_S)
        assert eligibility.is_known(dataset)
        assert eligibility.ineligible(dataset) == {0}
        (said,) = eligibility.warnings(dataset)
        assert "the executor one is skipped" in said
        assert "403: grant it" in said
        assert "skipping the executor one for s3://photos/train" in caplog.text
        two[0].edit = as_it_is
        asked = len(two[0].requests)
        await eligibility.check(dataset, ENOUGH_S)
        assert len(two[0].requests) == asked, "it does not retry at once"
        now_s[0] += 60.0
        await eligibility.check(dataset, ENOUGH_S)
        assert (eligibility.ineligible(dataset), eligibility.warnings(dataset)) == (frozenset(), ())


async def test_only_local_functions_read_local_files(two, valkey):
    two[0].files_remedy = two[1].files_remedy = WorkersExecutor.files_remedy

    async with using([two[0], ScriptedExecutor(valkey.unix_url)]) as eligibility:
        eligibility.check_source("file:///data")
        dataset = dataset_of(bucket="file:///data")
        await eligibility.check(dataset, ENOUGH_S)
        assert (eligibility.ineligible(dataset), eligibility.is_known(dataset)) == ({0}, True)
        (warning,) = eligibility.warnings(dataset)
    assert "the executor one is skipped, because its functions cannot see" in warning
    assert not two[0].requests

    async with using(two) as eligibility:
        eligibility.check_source("s3://bucket/train")
        for source in ("file:///data", "/data", "data"):
            with pytest.raises(ConfigError, match=r"coordinator's machine.*SUPER_SHARED_FILES=1"):
                eligibility.check_source(source)


async def until_told(eligibility, dataset, left_out):
    """Return what the core is told until exactly these executors are excluded, each with a warning."""
    told = []

    def is_settled():
        is_told = len(eligibility.warnings(dataset)) == len(left_out)
        return is_told and eligibility.ineligible(dataset) == left_out

    eligibility.report_changes([dataset], told.append)
    while not is_settled():  # noqa: ASYNC110  # nothing signals it
        await asyncio.sleep(0)
    eligibility.report_changes([dataset], told.append)
    return [event.executors for event in told]


@pytest.mark.parametrize(("edit", "changes"), [(as_it_is, [{1}, set()]), (REFUSE, [{1}])])
async def test_an_executor_that_starts_later_is_tried_and_reported(two, edit, changes):
    late = two[1]
    late.edit, late.comes = edit, False

    async with using(two) as eligibility:
        dataset = dataset_of()
        await eligibility.check(dataset, ENOUGH_S)
        assert eligibility.is_known(dataset)
        assert eligibility.opened(dataset) == frozenset()
        assert eligibility.warnings(dataset) == ("the executor two is unavailable: asleep",)
        late.comes = True
        while eligibility.executors[1].absence:  # noqa: ASYNC110  # nothing signals it
            await asyncio.sleep(0)
        assert eligibility.is_known(dataset), "a missing executor must not delay jobs"
        assert not late.requests
        assert await until_told(eligibility, dataset, changes[-1]) == changes


async def test_an_inconclusive_trial_is_repeated(two):
    two[1].fails_with(ExecutorError("no nodes"))
    now_s = [0.0]

    async with using(two, clock=lambda: now_s[0]) as eligibility:
        dataset = dataset_of()
        await eligibility.check(dataset, ENOUGH_S)
        assert eligibility.ineligible(dataset) == frozenset()
        assert "no function accepted the request (no nodes)" in eligibility.warnings(dataset)[0]
        eligibility.opened(dataset)
        two[1].before, two[1].edit = None, REFUSE
        now_s[0] += 60.0
        assert await until_told(eligibility, dataset, {1}) == [{1}]
        assert "the executor two is skipped" in eligibility.warnings(dataset)[0]
