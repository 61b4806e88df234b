"""A run's bill: exact arithmetic, each thing once, and what is not in it said."""

from __future__ import annotations

import math

import pytest

from superdl.coordinator.core import Ledger
from superdl.cost.bill import RunBill, bill_of, prices_for
from superdl.experiments.records import EpochSummary, LoaderCounters, PassTotals
from superdl.experiments.spec import CostSpec
from superdl.super_wire.errors import ConfigError

PRICES = prices_for(CostSpec())
LAMBDA = PRICES.of("lambda")


def epoch(number: int, wall_s: float, train: LoaderCounters | None, val: LoaderCounters | None = None):
    def summary(seconds, job, samples):
        return PassTotals(samples=samples).summary(seconds, job)

    checked = None if val is None else summary(wall_s / 4, val, 100)
    return EpochSummary(number, summary(wall_s if val is None else wall_s * 3 / 4, train, 1000), checked)


NOTHING = LoaderCounters()


def bill(epochs, *, executor=None, wall_s=3600.0, prices=PRICES, rest=NOTHING, **cost) -> RunBill:
    return bill_of(epochs, cost=CostSpec(**cost), executor=executor, wall_s=wall_s, prices=prices, rest=rest)


def lines_of(made: RunBill) -> dict[str, float | None]:
    return {line.name: line.usd for line in made.lines}


def approx(lines: dict[str, float | None]):
    return {name: usd if usd is None else pytest.approx(usd, abs=1e-15) for name, usd in lines.items()}


def test_a_local_run_costs_its_machine_alone():
    produced = LoaderCounters(invocations=10, gb_s=100.0, source_bytes=10**9, record_bytes=10**9)
    made = bill(
        [epoch(0, 1800.0, produced), epoch(1, 900.0, LoaderCounters())],
        executor="local",
        machine="g4dn.xlarge",
    )
    assert lines_of(made) == approx(
        {"training machine": 0.526, "functions": 0.0, "GETs": 0.0, "cache": 0.0, "coordinator": 0.0}
    )
    assert made.usd == pytest.approx(0.526)
    assert made.lines[0].by_epoch == pytest.approx((0.263, 0.1315))
    assert [one.usd for one in made.epochs] == pytest.approx([0.263, 0.1315])
    assert made.usd_per_million_images == pytest.approx(0.526 / 2000 * 1e6)
    assert made.epochs[1].usd_per_million_images == pytest.approx(0.1315 / 1000 * 1e6)
    assert made.lines[0].how == "1 h of 1 x g4dn.xlarge at 0.526 USD an hour"


def test_gets_of_a_bucket_are_billed_for_local_functions_and_for_loaders_without_any():
    counted = LoaderCounters(source_requests=1000, usd=4e-4)
    assert lines_of(bill([epoch(0, 60.0, counted)], executor="local"))["GETs"] == pytest.approx(4e-4)
    counted = LoaderCounters(source_requests=1000)
    made = bill([epoch(0, 60.0, counted)], machine="g4dn.xlarge", machines=2)
    assert lines_of(made) == approx(
        {"training machine": 1.052, "functions": 0.0, "GETs": 4e-4, "cache": 0.0, "coordinator": 0.0}
    )
    assert made.usd == pytest.approx(1.0524)


def lambda_job(hours: float, **changes) -> LoaderCounters:
    """What a job counts that is alone at a coordinator with functions on Lambda, by the real account."""
    figures = {
        "invocations": 50,
        "gb_s": 800.0,
        "source_requests": 3200,
        "source_bytes": 1,
        "record_bytes": 2,
    }
    figures |= changes
    ledger = Ledger([LAMBDA], max_usd=math.inf, max_usd_per_hour=math.inf)
    ledger.joined("job")
    ledger.settle(0.0)
    for _ in range(figures["invocations"]):
        parts = {name: value / figures["invocations"] for name, value in figures.items()}
        del parts["invocations"]
        usd = ledger.invoked(b"set", now=1.0, **parts)
        ledger.produced(b"set", "job", 64, usd)
    ledger.settle(hours * 3600)
    return LoaderCounters(**figures, usd=ledger.job_costs("job").usd)


def test_functions_on_lambda_are_taken_apart_and_sum_to_what_the_account_has():
    counted = lambda_job(hours=0.5)
    made = bill([epoch(0, 1800.0, counted)], executor="lambda", machine="g4dn.xlarge", wall_s=1800.0)
    functions = 50 * 2e-7 + 800 * 1.33334e-5
    assert lines_of(made) == approx(
        {
            "training machine": 0.263,
            "functions": functions,
            "GETs": 3200 * 4e-7,
            "cache": 0.5 * 0.1752,
            "coordinator": 0.5 * 0.0395,
        }
    )
    assert made.usd == pytest.approx(0.263 + counted.usd, abs=1e-12)
    assert "nodes at 0.1752 USD an hour" in made.lines[3].how


def test_training_and_validation_are_added():
    train, val = lambda_job(0.25), LoaderCounters(source_requests=100, usd=100 * 4e-7)
    made = bill([epoch(0, 900.0, train, val)], executor="lambda")
    assert lines_of(made)["GETs"] == pytest.approx(3300 * 4e-7)
    assert made.usd == pytest.approx(train.usd + val.usd, abs=1e-12)


def test_nodes_of_the_spec_take_the_place_of_those_of_the_account():
    counted = lambda_job(hours=1.0)
    made = bill([epoch(0, 3000.0, counted)], executor="lambda", cache_node="cache.r7g.xlarge", cache_nodes=2)
    told = lines_of(made)
    assert told["cache"] == pytest.approx(2 * 0.3496)
    assert told["coordinator"] == pytest.approx(0.0395)
    assert made.usd == pytest.approx(told["functions"] + told["GETs"] + 2 * 0.3496 + 0.0395)


def test_a_price_of_ones_own_for_both_is_not_taken_apart(tmp_path):
    file = tmp_path / "prices.toml"
    file.write_text("[lambda]\nhour = 1.0\n")
    made = bill(
        [epoch(0, 60.0, LoaderCounters(usd=0.5))], executor="lambda", prices=prices_for(CostSpec(), str(file))
    )
    assert lines_of(made)["cache"] == pytest.approx(0.5)
    assert (made.lines[-1].usd, made.lines[-1].how) == (0.0, "in the line of the cache")


def test_what_cache_transfer_costs_is_a_line_where_it_does(tmp_path):
    file = tmp_path / "prices.toml"
    file.write_text("[lambda]\nrecord_gb = 0.5\nhour = 0\n")
    counted = LoaderCounters(record_bytes=2**30, read_bytes=2**31, usd=1.5)
    made = bill([epoch(0, 60.0, counted)], executor="lambda", prices=prices_for(CostSpec(), str(file)))
    assert lines_of(made)["transfer"] == pytest.approx(1.5)
    assert lines_of(made)["cache"] is None
    assert made.usd == pytest.approx(1.5)


def test_what_other_jobs_bear_or_leave_is_a_line_of_its_own():
    made = bill([epoch(0, 60.0, LoaderCounters(source_requests=1000, usd=1e-4))], executor="local")
    assert lines_of(made)["other jobs"] == pytest.approx(-3e-4)
    assert made.usd == pytest.approx(1e-4)
    cheap = lambda_job(0.0)
    made = bill([epoch(0, 60.0, LoaderCounters(gb_s=800.0, usd=cheap.usd / 2))], executor="lambda")
    assert lines_of(made)["cache"] == 0.0
    assert made.usd == pytest.approx(cheap.usd / 2)


def test_functions_on_ray_cost_their_hosts():
    counted = LoaderCounters(invocations=3, gb_s=9.0)
    hosts = {"machine": "g4dn.xlarge", "data_machine": "c6i.2xlarge", "data_machines": 3}
    made = bill([epoch(0, 60.0, counted)], executor="ray", **hosts)
    assert lines_of(made)["data machines"] == pytest.approx(3 * 0.34)
    assert lines_of(made)["functions"] == 0.0
    assert made.usd == pytest.approx(0.526 + 1.02)
    without = bill([epoch(0, 60.0, counted)], executor="ray")
    assert (lines_of(without)["functions"], without.usd) == (None, 0.0)
    assert "cost.data_machine" in next(line.how for line in without.lines if line.name == "functions")


@pytest.mark.parametrize("executor", ["local,lambda", "as the coordinator at host:1 decides"])
def test_what_cannot_be_taken_apart_stays_one_sum(executor):
    made = bill(
        [epoch(0, 60.0, LoaderCounters(usd=0.25, gb_s=1.0))], executor=executor, cache_node="cache.r7g.large"
    )
    assert lines_of(made) == {"training machine": None, "functions, GETs, cache and coordinator": 0.25}
    assert made.usd == 0.25
    assert any("counted twice" in text for text in made.left_out)


def test_what_is_not_named_is_not_in_the_bill_and_said():
    made = bill([epoch(0, 60.0, None)], executor="local", rest=None)
    assert made.lines[0].usd is None
    assert made.lines[0].how == "not in the bill: cost.machine names none"
    assert made.usd == 0.0
    assert made.left_out[0] == "what 1 pass(es) cost, of which the coordinator told nothing"
    (cache,) = [line.how for line in made.lines if line.name == "cache"]
    assert cache == "it runs on a machine that cost does not name"
    named = bill([epoch(0, 60.0, None)], executor="local", machine="g4dn.xlarge")
    assert "it runs on a machine of the bill" in [line.how for line in named.lines]


def test_what_was_not_told_of_a_pass_is_not_left_out_where_the_next_has_it():
    told = LoaderCounters(usd=2.0)
    made = bill([epoch(0, 60.0, None), epoch(1, 60.0, told)], executor="local,lambda", rest=None)
    assert made.usd == 2.0
    assert not any("pass(es)" in text for text in made.left_out)
    rest = bill([epoch(0, 60.0, told), epoch(1, 60.0, None)], executor="local,lambda", rest=told)
    assert rest.usd == 4.0
    assert not any("pass(es)" in text for text in rest.left_out)


def test_what_an_unfinished_epoch_has_used_is_in_the_bill_and_in_no_epoch():
    whole = bill([epoch(0, 1800.0, lambda_job(0.5)), epoch(1, 1800.0, lambda_job(0.5))], executor="lambda")
    cut = bill([epoch(0, 1800.0, lambda_job(0.5))], executor="lambda", rest=lambda_job(0.5))
    assert lines_of(cut) == approx(lines_of(whole))
    assert [one.usd for one in cut.epochs] == pytest.approx([whole.epochs[0].usd])
    none = bill([], executor="lambda", rest=lambda_job(0.5))
    assert none.usd == pytest.approx(whole.usd / 2)
    assert none.epochs == ()


def test_what_nobody_could_tell_of_the_end_is_said_to_be_left_out():
    made = bill([epoch(0, 1800.0, lambda_job(0.5))], executor="lambda", rest=None)
    assert made.left_out[0].startswith("what was used after the last whole epoch")


def test_a_run_without_an_epoch_has_a_bill():
    made = bill([], executor="lambda", machine="g4dn.xlarge", wall_s=36.0)
    assert made.usd == pytest.approx(0.00526)
    assert (made.epochs, made.usd_per_million_images) == ((), None)


@pytest.mark.parametrize("key", ["machine", "data_machine", "cache_node"])
def test_what_the_table_lacks_is_refused_by_name(key):
    with pytest.raises(ConfigError, match="'tractor'"):
        prices_for(CostSpec(**{key: "tractor"}))
