"""The cache's clients are counted against the functions that the coordinator has; amounts are checked."""

from __future__ import annotations

import pytest

from superdl.coordinator.server.settings import Settings
from superdl.doctor import Verdict
from superdl.doctor.case import Case, Seen
from superdl.doctor.limits import check_clients
from superdl.main import main
from superdl.super_wire import coordinator_pb2 as pb
from superdl.super_wire.recipe import Recipe

CASE = Case(settings=Settings(workers=1), recipe=Recipe.image(crop=32), coordinator="host:50051")


def seen_at(valkey, executor, capacity):
    told = pb.Coordinating(executors=[executor])
    return Seen(cache=valkey.url, coordinating=told, capacities={executor: capacity})


@pytest.mark.parametrize("executor", ["local", "ray"])
def test_functions_are_the_coordinators(valkey, executor):
    found = check_clients(CASE, seen_at(valkey, executor, 64))
    assert found.verdict is Verdict.GOOD
    assert "; 64 functions, " in found.reason
    assert check_clients(CASE, seen_at(valkey, executor, 10**6)).verdict is Verdict.DOUBTFUL


@pytest.mark.parametrize("executor", ["local", "ray"])
def test_a_number_that_nobody_tells_is_not_looked_at(valkey, executor):
    found = check_clients(CASE, seen_at(valkey, executor, 0))
    assert found.verdict is Verdict.SKIPPED
    assert executor in found.reason


def test_no_function_at_once_is_wrong_use(capsys):
    assert main(["doctor", "--lambda-concurrency", "0", "--executor", "lambda"]) == 2
    assert "lambda_concurrency" in capsys.readouterr().err


def test_what_is_wrong_with_an_amount_is_told(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--batch-size", "0"])
    assert ended.value.code == 2
    assert "a whole number above 0 is wanted; not '0'" in capsys.readouterr().err
