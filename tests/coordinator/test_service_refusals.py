"""Every RPC over real gRPC: the typed error for each bad input, and that it harms nobody."""

from __future__ import annotations

import asyncio
import math

import grpc
import pytest

from superdl.coordinator.core import JobClosed
from superdl.super_wire import coordinator_pb2 as pb
from superdl.super_wire.errors import (
    ConfigError,
    PlanError,
    ProtocolMismatchError,
    RecipeError,
    SourceEmptyError,
    SourceError,
    SourceNotFoundError,
    UnknownJobError,
)
from superdl.super_wire.keys import report_stream
from superdl.super_wire.protocol import ERROR_METADATA_KEY, PROTOCOL_VERSION
from superdl.super_wire.read_report import ReadReport
from superdl.super_wire.recipe import Recipe
from tests.coordinator.running import ENOUGH_S, registration

FREE_SHAPE = Recipe.image(resize=4)


def report(position=0, missed=(), *, done=1, hits=4, **changes):
    facts = {
        "rank": 0,
        "epoch": 0,
        "wait_us": 5,
        "read_us": 7,
        "check_us": 1,
        "size_bytes": 9,
        "attempt": 1,
        "samples": 4,
    }
    return ReadReport(
        position=position, hits=hits, done=done, missed=tuple(missed), **(facts | changes)
    ).to_fields()


def test_another_protocol_version_is_refused_with_both_numbers(run):
    async def work(coordinator):
        with pytest.raises(
            ProtocolMismatchError, match=rf"version {PROTOCOL_VERSION}, the sampler version 99: install"
        ):
            await coordinator.call("RegisterDataset", registration(protocol_version=99))

    run(work)


def test_the_error_travels_as_status_details_and_trailing_metadata(run):
    async def work(coordinator):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await coordinator.stub.NextBatches(pb.NextBatchesRequest(job="nobody"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        assert dict(caught.value.trailing_metadata())[ERROR_METADATA_KEY] == "UnknownJobError"
        assert caught.value.details() == "no job 'nobody' is open here: open it (again)"

    run(work)


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ("", "a recipe is JSON"),
        ("{", "a recipe is JSON"),
        ("[]", "a recipe is JSON"),
        ('{"pipeline":1,"steps":[{"op":"explode"}],"augment_seed":0}', "explode"),
        ('{"pipeline":99,"steps":[],"augment_seed":0}', "pipeline 99"),
    ],
)
def test_a_recipe_that_is_none_is_refused(run, recipe, message):
    async def work(coordinator):
        with pytest.raises(RecipeError, match=message):
            await coordinator.call("RegisterDataset", registration(recipe=recipe))

    run(work)


@pytest.mark.parametrize("field", ["source", "recipe", "key_list", "run_id"])
def test_oversized_text_is_refused(run, field):
    async def work(coordinator):
        with pytest.raises(ConfigError, match="at most 65536 characters"):
            await coordinator.call("RegisterDataset", registration(**{field: "x" * 65_537}))

    run(work)


def test_an_oversized_message_is_refused_by_grpc(run):
    async def work(coordinator):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await coordinator.call("RegisterDataset", registration(source="x" * (5 * 2**20)))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED

    run(work)


def test_an_error_as_long_as_its_cause_still_arrives(run):
    async def work(coordinator):
        text = '{"pipeline":1,"steps":[{"op":"%s"}],"augment_seed":0}' % ("\u00e9" * 30_000)
        with pytest.raises(RecipeError):
            await coordinator.call("RegisterDataset", registration(recipe=text))

    run(work)


def test_a_source_that_cannot_be_listed_is_told_by_the_poll(run, tmp_path):
    (tmp_path / "empty").mkdir()

    async def work(coordinator):
        with pytest.raises(SourceNotFoundError, match="missing"):
            await coordinator.register(tmp_path / "missing")
        with pytest.raises(SourceEmptyError, match="empty"):
            await coordinator.register(tmp_path / "empty")
        for source in ("gopher://a", "", "file:///a\0b"):
            answer = await coordinator.call("RegisterDataset", registration(source=source))
            with pytest.raises(SourceError):
                await coordinator.call(
                    "GetDataset", pb.GetDatasetRequest(dataset_id=answer.dataset_id, wait_s=ENOUGH_S)
                )

    run(work)


@pytest.mark.parametrize("wait_s", [0.0, -1.0, math.nan, 0.01])
def test_a_poll_without_news_ends(run, source, wait_s):
    async def work(coordinator):
        dataset = await coordinator.register(source)
        request = pb.GetDatasetRequest(dataset_id=dataset.dataset_id, listed=2**63, wait_s=wait_s)
        assert (await coordinator.call("GetDataset", request)).ready

    run(work)


def test_an_unknown_dataset_is_to_be_registered(run, source):
    async def work(coordinator):
        with pytest.raises(UnknownJobError, match=f"no dataset {'78' * 16} is registered here"):
            await coordinator.call("GetDataset", pb.GetDatasetRequest(dataset_id=b"x" * 16))
        with pytest.raises(UnknownJobError, match="register it"):
            await coordinator.open(pb.Dataset(dataset_id=b"x" * 16))

    run(work)


@pytest.mark.parametrize(
    ("facts", "error", "message"),
    [
        ({"batch_size": 0}, PlanError, "batch_size must be from 1"),
        ({"batch_size": 11, "drop_last": True}, PlanError, "drop_last leaves no batch.*10 samples"),
        ({"replicas": 0}, PlanError, "replicas must be from 1"),
        ({"replicas": 2, "rank": 2}, PlanError, "rank is from 0 to 1; not 2"),
        ({"job": ""}, ConfigError, "a job's id has 1 to 256"),
        ({"job": "x" * 257}, ConfigError, "a job's id has 1 to 256"),
        ({"job": "{slot}"}, ConfigError, "a job's id has"),
        ({"job": "%bell"}, ConfigError, "a job's id has"),
        ({"job": "a\nb"}, ConfigError, "a job's id has"),
        ({"job": "caf\u00e9"}, ConfigError, "a job's id has"),
    ],
)
def test_a_job_that_cannot_be_is_refused(run, source, facts, error, message):
    async def work(coordinator):
        dataset = await coordinator.register(source)
        with pytest.raises(error, match=message):
            await coordinator.open(dataset, **facts)
        with pytest.raises(UnknownJobError if "job" not in facts else ConfigError):
            await coordinator.page(facts.get("job", "job"))

    run(work)


HOSTILE_IDS = (
    "%bell",
    "{slot}",
    "",
    ".\r\nFLUSHALL",
    "\x1b[2J",
    "\0",
    "\u202e",
    "x" * 257,
    "x" * 70_000,
    "*",
)


@pytest.mark.parametrize("id_", HOSTILE_IDS, ids=lambda id_: repr(id_[:12]))
def test_hostile_ids_are_refused_by_every_method_and_harm_nobody(run, source, id_):
    service = pb.DESCRIPTOR.services_by_name["Coordinator"]

    async def work(coordinator):
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
                    whole.MergeFrom(
                        pb.OpenJobRequest(dataset_id=dataset.dataset_id, batch_size=4, replicas=1)
                    )
                with pytest.raises(ConfigError, match="id has"):
                    await coordinator.call(method.name, whole)
                asked += 1
        assert asked == 7
        await coordinator.open(dataset, "another")  # which rings the bell
        await coordinator.reports.read_once()
        assert len((await coordinator.page("another")).batches) == 3
        assert not coordinator.engine.failed.done()

    run(work)


def test_bytes_that_are_no_message_are_refused_and_told_as_one_cause(run, caplog):
    async def work(coordinator):
        for _ in range(20):
            ask = coordinator.channel.unary_unary("/super.v1.Coordinator/CloseJob")
            with pytest.raises(grpc.aio.AioRpcError, match="the call's message is malformed") as caught:
                await ask(b"\xff\xff\xff", timeout=ENOUGH_S)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    run(work)
    told = [record for record in caplog.records if "malformed" in record.message]
    assert {(record.levelname, record.cause) for record in told} == {("WARNING", "malformed call")}
    assert "Traceback" not in caplog.text


def test_a_batch_larger_than_the_cache_is_refused_if_its_size_is_known(run, source):
    async def work(coordinator):
        fixed = await coordinator.register(source)
        with pytest.raises(
            ConfigError, match="a batch of 10 samples has 1,120 bytes .* budget of 1,000 bytes: raise"
        ):
            await coordinator.open(fixed, batch_size=1000)
        assert (await coordinator.open(fixed, batch_size=5)).batches_per_epoch == 2
        free = await coordinator.register(source, recipe=FREE_SHAPE)
        assert (await coordinator.open(free, "free", batch_size=10)).batches_per_epoch == 1

    run(work, budget_bytes=1000)


def test_a_job_of_the_same_id_and_another_plan_or_dataset_is_refused(run, source):
    async def work(coordinator):
        dataset = await coordinator.register(source)
        other = await coordinator.register(source, recipe=FREE_SHAPE)
        opened = await asyncio.gather(
            coordinator.open(dataset, seed=1), coordinator.open(dataset, seed=2), return_exceptions=True
        )
        assert sorted(type(answer).__name__ for answer in opened) == ["ConfigError", "Job"]
        with pytest.raises(ConfigError, match="is open with another plan or dataset"):
            await coordinator.open(other)

    run(work)


def test_a_rank_that_has_not_opened_the_job_is_told_to(run, source):
    async def work(coordinator):
        await coordinator.open(await coordinator.register(source), replicas=2, rank=0)
        with pytest.raises(UnknownJobError, match="rank 1 has not opened the job 'job'"):
            await coordinator.page(rank=1)

    run(work)


@pytest.mark.parametrize(
    "place", [{"position": 4}, {"position": 2**63}, {"epoch": 2**41}, {"epoch": 2**64 - 1}]
)
def test_a_place_beyond_the_plan_is_refused_and_harms_nobody(run, source, place):
    async def work(coordinator):
        await coordinator.open(await coordinator.register(source))
        with pytest.raises(PlanError):
            await coordinator.page(**place)
        assert len((await coordinator.page()).batches) == 3

    run(work)


def test_a_sampler_may_claim_anything_of_what_it_has_given_out(run, source):
    async def work(coordinator):
        await coordinator.open(await coordinator.register(source))
        for yielded in (0, 2**63, 1, 3):
            assert (await coordinator.page(position=1, yielded=yielded)).batches

    run(work)


def test_too_many_batch_ids_are_refused_and_strange_ones_are_unknown(run):
    async def work(coordinator):
        with pytest.raises(ConfigError, match="at most 4096 batches"):
            await coordinator.call("GetBatchStatus", pb.GetBatchStatusRequest(batch_ids=[b"x"] * 4097))
        strange = [b"x" * 16, b"y" * 16]
        answer = await coordinator.call("GetBatchStatus", pb.GetBatchStatusRequest(batch_ids=strange))
        assert [status.known for status in answer.statuses] == [False] * 2

    run(work)


def test_stats_of_an_unknown_job_are_refused(run):
    async def work(coordinator):
        with pytest.raises(UnknownJobError, match="no job 'nobody'"):
            await coordinator.call("GetJobStats", pb.GetJobStatsRequest(jobs=["nobody"]))
        assert not (await coordinator.call("CloseJob", pb.CloseJobRequest(job="nobody"))).closed

    run(work)


def test_an_unreachable_cache_is_named_when_a_job_is_opened(run, valkey, source):
    async def work(coordinator):
        dataset = await coordinator.register(source)
        valkey.kill()
        with pytest.raises(Exception, match=f"the cache at {valkey.unix_url} does not answer"):
            await coordinator.open(dataset)
        valkey.start()
        await coordinator.open(dataset)
        await coordinator.until(lambda: coordinator.engine.core.job("job").counters.samples_produced == 10)

    run(work)


def test_a_job_that_the_core_has_forgotten_is_forgotten_here_too(run, valkey, source):
    async def work(coordinator):
        dataset = await coordinator.register(source)
        await coordinator.open(dataset, "silent")
        with valkey.client() as client:
            client.xadd(report_stream("silent"), report())
        coordinator.engine.post(
            JobClosed("silent", 0)
        )  # as the core does with ranks that are silent for long
        with pytest.raises(UnknownJobError):
            await coordinator.page("silent")
        await coordinator.open(dataset, "next")
        with valkey.client() as client:
            assert not client.exists(report_stream("silent"))

    run(work)
