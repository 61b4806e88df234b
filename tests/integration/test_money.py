"""Money, whole: what a run costs is told, and a cap ends production with an error that names it."""

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils.data import DataLoader

from superdl.sampler import SuperSampler
from superdl.super_dataset import Recipe, SuperDataset
from superdl.super_wire.errors import SpendingCapError
from superdl.super_wire.keys import SPENT_KEY
from tests.fixtures.images import SIDE
from tests.fixtures.stack import Stack
from tests.integration.delivery import collect

RECIPE = Recipe.image(resize=SIDE, crop=SIDE)
SUPERDL = Path(sys.executable).with_name("superdl")


@contextlib.contextmanager
def billed(temporary, *arguments):
    """A stack whose functions cost one dollar an invocation."""
    prices = temporary / "prices.toml"
    prices.write_text("[local]\ninvocation = 1.0\n")
    with Stack(arguments=("--slots", "2", "--prices", str(prices), *arguments)) as running:
        yield running


@pytest.fixture(scope="module")
def uncapped(temporary):
    with billed(temporary) as stack:
        yield stack


def stats(stack, *words):
    done = subprocess.run(  # our own command
        [str(SUPERDL), "stats", "--coordinator", stack.address, "--json", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return json.loads(done.stdout)


def test_jobs_that_share_split_the_bill(uncapped, images):
    samplers = []
    for seed in (1, 2):
        dataset = SuperDataset(images.as_uri(), RECIPE)
        sampler = SuperSampler(dataset, batch_size=10, shuffle=True, seed=seed, coordinator=uncapped.address)
        samplers.append(sampler)
        collect(DataLoader(dataset, sampler=sampler, batch_size=None))
    wanted = [sampler.job_stats() for sampler in samplers]
    # Reports are read a moment later, and a request that lost a race is answered later still.
    while any(one.batches_read < 15 or one.total_requests_in_flight for one in wanted):
        wanted = [sampler.job_stats() for sampler in samplers]
    wanted = [sampler.job_stats() for sampler in samplers]  # shares move while others read: now none does
    calls = sum(one.invocations for one in wanted)
    assert calls == sum(one.usd for one in wanted) == wanted[0].total_usd
    assert all(one.functions_usd == one.usd for one in wanted), "nothing else has a price here"
    assert sum(one.samples_produced for one in wanted) == 150, "once for both"
    assert wanted[1].usd == pytest.approx(calls / 2, rel=0.2), "both have read all of it"
    assert all(one.gb_s > 0 for one in wanted if one.invocations)
    for sampler in samplers:
        sampler.close()


@pytest.mark.slow
def test_at_the_hard_cap_batches_fail_with_its_name_over_restarts_too(temporary, images):
    with billed(temporary, "--max-usd", "3") as stack:
        for policy in ("raise", "skip"):
            dataset = SuperDataset(images.as_uri(), RECIPE, on_bad_sample=policy)
            with SuperSampler(
                dataset, batch_size=10, shuffle=True, seed=1, coordinator=stack.address
            ) as sampler:
                loader = DataLoader(dataset, sampler=sampler, batch_size=None)
                with pytest.raises(SpendingCapError, match="max_usd, which is 3"):
                    collect(loader)
                told = sampler.job_stats()
                assert 0 < told.total_usd <= 3
                assert told.spending == "stopped"
                # What is paid for can be read all the while: the job's first batch is in the cache.
                sampler.set_epoch(0)
                assert next(iter(loader))[1].shape == (10,)
        for ending in ("killed", "ended"):
            with stack.valkey.client() as client:
                while json.loads(client.get(SPENT_KEY) or '{"usd": 0}')["usd"] < told.total_usd:
                    pass  # written within a second
                if ending == "killed":
                    stack.kill_coordinator()
                else:
                    assert stack.close_coordinator() == 0
                if records := client.keys("super:r1:*"):
                    client.unlink(*records)
            stack.start_coordinator()
            with SuperSampler(
                dataset, batch_size=10, shuffle=True, seed=1, coordinator=stack.address
            ) as sampler:
                assert sampler.job_stats().total_usd == told.total_usd
                with pytest.raises(SpendingCapError, match="including before restarts"):
                    collect(DataLoader(dataset, sampler=sampler, batch_size=None))
                assert sampler.job_stats().total_usd == told.total_usd
