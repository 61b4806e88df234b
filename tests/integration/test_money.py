"""Spending end to end: the cost of a run is reported, and a cap stops production with an error naming it."""

import contextlib
import json

import pytest

from superdl.super_wire.errors import SpendingCapError
from superdl.super_wire.keys import SPENT_KEY
from tests.fixtures.stack import Stack
from tests.fixtures.workers import until
from tests.integration.delivery import collect, reading


@contextlib.contextmanager
def billed(temporary, *arguments):
    """A stack whose functions cost one dollar per invocation."""
    prices = temporary / "prices.toml"
    prices.write_text("[local]\ninvocation = 1.0\n")
    with Stack(arguments=("--slots", "2", "--prices", str(prices), *arguments)) as running:
        yield running


def test_jobs_that_share_split_the_bill(temporary, images):
    with billed(temporary) as stack, contextlib.ExitStack() as jobs:
        samplers = []
        for seed in (1, 2):
            sampler, loader = jobs.enter_context(
                reading(images.as_uri(), stack.address, batch_size=10, seed=seed)
            )
            samplers.append(sampler)
            collect(loader)

        def all_are_answered():
            """Read reports arrive with a delay, and the answer of a request that lost a race even later."""
            each = [sampler.job_stats() for sampler in samplers]
            return all(one.batches_read == 15 and not one.total_requests_in_flight for one in each)

        until(all_are_answered, 60.0)
        shares = [sampler.job_stats() for sampler in samplers]
    calls = sum(one.invocations for one in shares)
    assert calls == sum(one.usd for one in shares) == shares[0].total_usd
    assert all(one.functions_usd == one.usd for one in shares), "only functions have a price here"
    assert sum(one.samples_produced for one in shares) == 150, "samples were produced per job, not shared"
    assert shares[1].usd == pytest.approx(calls / 2, rel=0.2), "the bill was not split in half"
    assert all(one.gb_s > 0 for one in shares if one.invocations)


@pytest.mark.slow
def test_at_the_hard_cap_batches_fail_with_its_name_over_restarts_too(temporary, images):
    with billed(temporary, "--max-usd", "3") as stack:

        def job(policy):
            return reading(images.as_uri(), stack.address, batch_size=10, on_bad_sample=policy)

        for policy in ("raise", "skip"):
            with job(policy) as (sampler, loader):
                with pytest.raises(SpendingCapError, match=r"exceed max_usd \(3 USD\)"):
                    collect(loader)
                told = sampler.job_stats()
                assert 0 < told.total_usd <= 3
                assert told.spending == "stopped"
                # Paid samples stay readable: the job's first batch is in the cache.
                sampler.set_epoch(0)
                assert next(iter(loader))[1].shape == (10,)
        for ending in (stack.kill_coordinator, stack.close_coordinator):
            with stack.valkey.client() as client:
                # Spending is saved within a second.
                until(lambda: json.loads(client.get(SPENT_KEY) or '{"usd": 0}')["usd"] == told.total_usd)
                assert not ending()
                if records := client.keys("super:r1:*"):
                    client.unlink(*records)
            stack.start_coordinator()
            with job("skip") as (sampler, loader):
                assert sampler.job_stats().total_usd == told.total_usd
                with pytest.raises(SpendingCapError, match="including before restarts"):
                    collect(loader)
                assert sampler.job_stats().total_usd == told.total_usd
