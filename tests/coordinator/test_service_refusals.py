"""Every RPC over real gRPC: each bad input gets its typed error and affects no one else."""

import asyncio
import math
import threading

import grpc
import pytest

from superdl.coordinator.catalog import list_source
from superdl.coordinator.catalog.datasets import DatasetRegistry
from superdl.coordinator.core import JobClosed
from superdl.coordinator.server import service
from superdl.coordinator.server.tokens import Tokens
from superdl.coordinator.store.keeper import StoreKeeper
from superdl.super_wire import coordinator_pb2 as pb
from superdl.super_wire.draws import Draws
from superdl.super_wire.errors import (
    ConfigError,
    CoordinatorError,
    PlanError,
    ProtocolMismatchError,
    RecipeError,
    UnknownJobError,
)
from superdl.super_wire.keys import report_stream
from superdl.super_wire.protocol import ERROR_METADATA_KEY
from superdl.super_wire.recipe import Recipe
from tests.coordinator.running import ENOUGH_S, RECIPE, registration, report

FREE_SHAPE = Recipe.image(resize=4)


async def test_the_error_travels_as_status_details_and_trailing_metadata(coordinator):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await coordinator.stub.NextBatches(pb.NextBatchesRequest(job="nobody"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert dict(caught.value.trailing_metadata())[ERROR_METADATA_KEY] == "UnknownJobError"
    assert caught.value.details() == "the job 'nobody' is not open: open it (again)"


LONG_OP = '{"pipeline":1,"steps":[{"op":"%s"}],"augment_seed":0}' % ("\U0001f600" * 15_000)


@pytest.mark.parametrize(
    ("method", "asked", "error", "reason"),
    [
        ("RegisterDataset", {"protocol_version": 99}, ProtocolMismatchError, "the sampler uses version 99"),
        ("RegisterDataset", {"recipe": ""}, RecipeError, "a recipe must be JSON"),
        ("RegisterDataset", {"recipe": LONG_OP}, RecipeError, "unknown step"),  # too long for a header
        ("RegisterDataset", {"run_id": "x" * 65_537}, ConfigError, "65536 characters"),
        ("GetDataset", {"dataset_id": b"x" * 16}, UnknownJobError, "the dataset 7878.* not registered"),
        ("OpenJob", {"dataset_id": b"x" * 16, "job": "j"}, UnknownJobError, "register it"),
        ("NextBatches", {"job": "j"}, UnknownJobError, "the job 'j' is not open"),
        ("GetJobStats", {"jobs": ["nobody"]}, UnknownJobError, "the job 'nobody' is not open"),
        ("GetJobStats", {"jobs": ["j"] * 1025}, ConfigError, "at most 1024 jobs"),
        ("GetBatchStatus", {"batch_ids": [b"x" * 17]}, ConfigError, "a batch id must be 16 bytes"),
        ("GetBatchStatus", {"batch_ids": [b"x" * 16] * 4097}, ConfigError, "at most 4096 batches"),
    ],
)
async def test_what_cannot_be_is_refused_by_name(coordinator, method, asked, error, reason):
    kind = getattr(pb, pb.DESCRIPTOR.services_by_name["Coordinator"].methods_by_name[method].input_type.name)
    request = registration(**asked) if method == "RegisterDataset" else kind(**asked)
    with pytest.raises(error, match=reason):
        await coordinator.call(method, request)


@pytest.mark.parametrize("kept", [False, True])
async def test_a_job_that_exceeds_the_cache_is_told_by_both_sizes_and_the_setting(
    coordinator, source, monkeypatch, kept
):
    big = Recipe.image(resize=1024, crop=1024)  # 3 MiB each
    monkeypatch.setattr(StoreKeeper, "unwritten", "" if kept else "it is full")
    half = Draws.of([0, 2, 4, 6, 8, 8], None, count=None, repeats=1, shuffle=True).packed()[0]

    async def warnings(job, recipe, **facts):
        dataset = await coordinator.register(source, recipe=recipe)
        return (await coordinator.open(dataset, job, batch_size=2, **facts)).warnings

    [told] = await warnings("all", big)
    assert f"{source} takes about 31 MiB when decoded, but the cache has 16 MiB for records" in told
    assert "cache_bytes (SUPER_CACHE_BYTES) to 41 MiB" in told
    assert ("nothing is lost" in told, "decoded again in every epoch" in told) == (kept, not kept)
    assert ("SUPER_STORE" in told) is not kept
    random = Recipe([{"op": "random_resized_crop", "size": 1024}])
    for name, recipe, facts in (
        ("small", RECIPE, {}),
        ("random", random, {}),
        ("subset", big, {"indices": half}),
    ):
        assert not await warnings(name, recipe, **facts), name


VISION, SPEECH = "a-token-of-team-vision", "a-token-of-team-speech"


@pytest.mark.coordinator(tokens=Tokens(f"{VISION} team=vision share=3, {SPEECH} team=speech"))
async def test_a_job_is_of_the_team_whose_token_opened_it_and_no_other_team_joins_it(coordinator, source):
    dataset = await coordinator.register(source)
    request = pb.OpenJobRequest(dataset_id=dataset.dataset_id, job="job", batch_size=4, replicas=1)

    async def open_by(token):
        await coordinator.stub.OpenJob(request, metadata=(("authorization", f"Bearer {token}"),))

    await open_by(VISION)
    await open_by(VISION)
    assert coordinator.engine.core.job("job").team == "vision"
    for other in (SPEECH, "of nobody"):
        with pytest.raises(grpc.aio.AioRpcError, match="belongs to another team: use that team's token"):
            await open_by(other)


@pytest.mark.parametrize("wait_s", [0.0, -1.0, math.nan, 0.01])
async def test_a_poll_without_news_ends(coordinator, source, wait_s):
    dataset = await coordinator.register(source)
    request = pb.GetDatasetRequest(dataset_id=dataset.dataset_id, listed=2**63, wait_s=wait_s)
    assert (await coordinator.call("GetDataset", request)).ready


LONG_EPOCHS = {
    "batch_size": 1,
    "shuffle": True,
    "weights": Draws.of(None, [1.0] * 10, count=1, repeats=1, shuffle=True).packed()[1],
    "draws": 2**40,
}


@pytest.mark.parametrize(
    ("facts", "error"),
    [
        ({"batch_size": 0}, PlanError),
        ({"batch_size": 11, "drop_last": True}, PlanError),
        ({"replicas": 2, "rank": 2}, PlanError),
        ({"position": 4}, PlanError),
        ({"epoch": 2**63, "position": 2**63}, PlanError),
        ({"epoch": 2**40, **LONG_EPOCHS}, PlanError),
        ({"job": "x" * 257}, ConfigError),
        ({"job": "caf\u00e9"}, ConfigError),
    ],
)
async def test_a_job_that_cannot_be_is_refused(coordinator, source, facts, error):
    dataset = await coordinator.register(source)
    with pytest.raises(error):
        await coordinator.open(dataset, **facts)
    with pytest.raises(UnknownJobError if "job" not in facts else ConfigError):
        await coordinator.page(facts.get("job", "job"))


HOSTILE_IDS = ("{slot}", "", ".\r\nFLUSHALL", "\x1b[2J", "\0", "\u202e", "x" * 70_000)


@pytest.mark.parametrize("id_", HOSTILE_IDS, ids=lambda id_: repr(id_[:12]))
async def test_hostile_ids_are_refused_by_every_method_and_harm_nobody(coordinator, source, id_):
    service = pb.DESCRIPTOR.services_by_name["Coordinator"]
    dataset = await coordinator.register(source)
    await coordinator.open(dataset)
    asked = 0
    for method in service.methods:
        kind = getattr(pb, method.input_type.name)
        for field in method.input_type.fields:
            if field.name not in ("job", "jobs", "dataset_id", "batch_ids"):
                continue
            value = id_.encode() if field.type == field.TYPE_BYTES else id_
            whole = kind(**{field.name: [value] if field.is_repeated else value})
            if method.name == "OpenJob" and field.name == "job":
                whole.MergeFrom(pb.OpenJobRequest(dataset_id=dataset.dataset_id, batch_size=4, replicas=1))
            with pytest.raises(ConfigError, match="id must"):
                await coordinator.call(method.name, whole)
            asked += 1
    assert asked == 10
    await coordinator.open(dataset, "another")
    await coordinator.reports.read_once()
    assert len((await coordinator.page("another")).batches) == 3
    assert not coordinator.engine.failed.done()


@pytest.mark.coordinator(budget_bytes=1000)
async def test_a_batch_larger_than_the_cache_is_refused_if_its_size_is_known(coordinator, source):
    fixed = await coordinator.register(source)
    with pytest.raises(ConfigError, match="1,120 bytes.* 1,000 bytes"):
        await coordinator.open(fixed, batch_size=1000)
    assert (await coordinator.open(fixed, batch_size=5)).batches_per_epoch == 2
    free = await coordinator.register(source, recipe=FREE_SHAPE)
    assert (await coordinator.open(free, "free", batch_size=10)).batches_per_epoch == 1


async def test_a_job_of_the_same_id_and_another_plan_or_dataset_is_refused(coordinator, source):
    dataset = await coordinator.register(source)
    other = await coordinator.register(source, recipe=FREE_SHAPE)
    opened = await asyncio.gather(
        coordinator.open(dataset, seed=1), coordinator.open(dataset, seed=2), return_exceptions=True
    )
    assert sorted(type(answer).__name__ for answer in opened) == ["ConfigError", "Job"]
    with pytest.raises(ConfigError, match="open with a different plan, dataset or purpose"):
        await coordinator.open(other)


@pytest.mark.parametrize(
    ("place", "error"),
    [
        ({"position": 4}, PlanError),
        ({"position": 2**63}, PlanError),
        ({"epoch": 2**64 - 1}, PlanError),
        ({"rank": 1}, UnknownJobError),
    ],
)
async def test_a_place_beyond_the_plan_is_refused_and_harms_nobody(coordinator, source, place, error):
    await coordinator.open(await coordinator.register(source), replicas=1 + ("rank" in place))
    with pytest.raises(error):
        await coordinator.page(**place)
    for yielded in (0, 2**63, 1):  # a sampler may claim any position
        assert (await coordinator.page(position=1, yielded=yielded)).batches


async def test_an_unreachable_cache_is_named_when_a_job_is_opened(coordinator, valkey, source):
    dataset = await coordinator.register(source)
    valkey.kill()
    with pytest.raises(Exception, match=f"the cache at {valkey.unix_url} cannot be reached"):
        await coordinator.open(dataset)
    valkey.start()
    await coordinator.open(dataset)
    await coordinator.until(lambda: coordinator.engine.core.job("job").counters.samples_produced == 10)


async def test_a_job_that_the_core_has_forgotten_is_forgotten_here_too(coordinator, valkey, source):
    dataset = await coordinator.register(source)
    await coordinator.open(dataset, "silent")
    with valkey.client() as client:
        client.xadd(report_stream("silent"), report())
    coordinator.engine.post(JobClosed("silent", 0))  # as the core does with ranks silent for too long
    with pytest.raises(UnknownJobError):
        await coordinator.page("silent")
    await coordinator.open(dataset, "next")
    with valkey.client() as client:
        assert not client.exists(report_stream("silent"))


PLAIN = Recipe.image(resize=8, crop=8)


async def test_listings_under_way_are_few_and_those_that_wait_are_bounded(serving_loop, source):
    go, running, most = threading.Event(), set(), []

    def lister(*arguments):
        running.add(threading.get_ident())
        most.append(len(running))
        assert go.wait(ENOUGH_S)
        running.discard(threading.get_ident())
        return list_source(*arguments)

    datasets = DatasetRegistry(max_age_s=300.0, lister=lister)
    try:
        made = [datasets.register(f"file://{source}/./{n * '/'}", PLAIN, "", "run") for n in range(64)]
        with pytest.raises(CoordinatorError, match="already listing 64 sources"):
            datasets.register("file:///one/more", PLAIN, "", "run")
        assert datasets.register(f"file://{source}/./", PLAIN, "", "run") is made[0]
        go.set()
        for dataset in made:
            await datasets.wait(dataset, listed=2**62, wait_s=ENOUGH_S)
        assert all(dataset.ready for dataset in made)
        assert datasets.register(f"file://{source}", PLAIN, "", "run") not in made
    finally:
        go.set()
        await datasets.close()
    assert max(most) <= 8


async def test_ranks_are_bounded_over_all_jobs(coordinator, source, monkeypatch):
    monkeypatch.setattr(service, "_MAX_RANKS", 3)
    dataset = await coordinator.register(source)
    for rank in (0, 1):
        await coordinator.open(dataset, "one", replicas=2, rank=rank, batch_size=1)
    await coordinator.open(dataset, "two")
    with pytest.raises(CoordinatorError, match="its maximum of 3 ranks"):
        await coordinator.open(dataset, "three")
    await coordinator.open(dataset, "two")  # a known job can be reopened
    assert len((await coordinator.page("two")).batches) == 3
