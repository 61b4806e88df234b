"""A run's bill: shares of the coordinator's accounting, machines by the hour, and excluded items."""

import math
from dataclasses import asdict

import pytest

from superdl.coordinator.core import Prices
from superdl.coordinator.core.ledger import Ledger
from superdl.cost.bill import EpochUse, PaidByHour, bill_of, prices_for
from superdl.super_wire.stall_causes import WorkCounters

PRICES = prices_for(PaidByHour())
LAMBDA = PRICES.of("lambda")
NOTHING = WorkCounters()


def epoch(number, wall_s, counted=NOTHING):
    return EpochUse(number, wall_s, 1000, counted)


def bill(epochs, *, executor=None, wall_s=3600.0, rest=NOTHING, **hired):
    return bill_of(
        epochs, hired=PaidByHour(**hired), executor=executor, wall_s=wall_s, prices=PRICES, rest=rest
    )


def lines_of(made):
    return {line.name: line.usd for line in made.lines}


def approx(lines):
    return {name: usd if usd is None else pytest.approx(usd, abs=1e-15) for name, usd in lines.items()}


def account(hours, prices=LAMBDA):
    """What a coordinator tells of a job that is alone there, by the real account."""
    ledger = Ledger([prices], max_usd=math.inf, max_usd_per_hour=math.inf)
    ledger.add_job("job")
    ledger.settle(0.0)
    work = {"gb_s": 800.0, "source_requests": 3200, "source_bytes": 2**30, "record_bytes": 2**30}
    ledger.add_produced(b"set", "job", 64, ledger.bill_invocation(b"set", now=1.0, **work))
    ledger.settle(hours * 3600)
    costs = ledger.job_costs("job")
    dollars = {name: usd for name, usd in asdict(costs).items() if hasattr(NOTHING, name)}
    return WorkCounters(invocations=1, **work, **dollars, usd=costs.usd)


def test_a_local_run_costs_its_machine_and_the_gets():
    counted = WorkCounters(invocations=10, gb_s=100.0, source_requests=1000, source_requests_usd=4e-4)
    made = bill([epoch(0, 1800.0, counted), epoch(1, 900.0)], executor="local", machine="g4dn.xlarge")
    machine = {"training machine": 0.526, "functions": 0.0, "GETs": 4e-4, "cache": 0.0, "coordinator": 0.0}
    assert lines_of(made) == approx(machine)
    assert made.usd == pytest.approx(0.5264)
    assert made.lines[0].by_epoch == pytest.approx((0.263, 0.1315))
    assert [one.usd for one in made.epochs] == pytest.approx([0.2634, 0.1315])
    assert made.usd_per_million_images == pytest.approx(0.5264 / 2000 * 1e6)
    assert made.epochs[1].usd_per_million_images == pytest.approx(0.1315 / 1000 * 1e6)
    assert made.lines[0].how == "1 h of 1 x g4dn.xlarge at 0.526 USD an hour"


def test_gets_of_a_loader_that_decodes_by_itself_are_billed():
    made = bill([epoch(0, 60.0, WorkCounters(source_requests=1000))], machine="g4dn.xlarge", machines=2)
    assert lines_of(made) == approx({"training machine": 1.052, "GETs": 4e-4})


@pytest.mark.parametrize("executor", ["lambda", "local,lambda", "as the coordinator at host:1 decides"])
def test_the_account_is_shown_by_its_parts_and_sums_to_itself(executor):
    counted = account(0.5, Prices(2e-7, 1.3e-5, 4e-7, 0.25, 0.5, hour=0.2147, coordinator_hour=0.0395))
    made = bill([epoch(0, 1800.0, counted)], executor=executor, wall_s=1800.0)
    assert lines_of(made) == approx(
        {
            "training machine": None,
            "functions": 2e-7 + 800 * 1.3e-5,
            "GETs": 3200 * 4e-7,
            "transfer": 0.75,
            "cache": 0.5 * 0.1752,
            "coordinator": 0.5 * 0.0395,
        }
    )
    assert made.usd == pytest.approx(counted.usd, abs=1e-12)


def test_workers_cost_their_hosts():
    counted = WorkCounters(invocations=3, gb_s=9.0)
    hosts = {"machine": "g4dn.xlarge", "data_machine": "c6i.2xlarge", "data_machines": 3}
    made = bill([epoch(0, 60.0, counted)], executor="workers", **hosts)
    assert lines_of(made)["data machines"] == pytest.approx(3 * 0.34)
    assert lines_of(made)["functions"] == lines_of(made)["cache"] == 0.0
    assert made.usd == pytest.approx(0.526 + 1.02)
    without = bill([epoch(0, 60.0, counted)], executor="workers")
    assert (lines_of(without)["functions"], without.usd) == (None, 0.0)
    assert "cost.data_machine" in next(line.how for line in without.lines if line.name == "functions")


def test_what_an_unfinished_epoch_has_used_is_in_the_bill_and_in_no_epoch():
    whole = bill([epoch(0, 1800.0, account(0.5)), epoch(1, 1800.0, account(0.5))], executor="lambda")
    cut = bill([epoch(0, 1800.0, account(0.5))], executor="lambda", rest=account(0.5))
    assert lines_of(cut) == approx(lines_of(whole))
    assert [one.usd for one in cut.epochs] == pytest.approx([whole.epochs[0].usd])
    none = bill([], executor="lambda", rest=account(0.5))
    assert none.usd == pytest.approx(whole.usd / 2)
    assert (none.epochs, none.usd_per_million_images) == ((), None)
