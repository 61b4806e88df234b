"""``superdl warm`` with a coordinator that restarts, or whose store is full or missing."""

import json

import pytest

from superdl.main import main
from superdl.super_wire import coordinator_pb2 as pb
from superdl.super_wire.errors import ConfigError, UnknownJobError
from tests.sampler.scripted_coordinator import ScriptedCoordinator


@pytest.fixture
def server():
    running = ScriptedCoordinator()
    yield running
    running.stop()


def warm(server, capsys, *words):
    """Exit code, report and what is said beside it."""
    sizes = ["--resize", "256", "--crop", "224"]
    code = main(["warm", "s3://bucket/train", "--coordinator", server.address, *sizes, "--json", *words])
    out, err = capsys.readouterr()
    return code, json.loads(out or "null"), err


def test_a_store_that_is_not_there_is_refused(server, capsys):
    code, report, err = warm(server, capsys, "--to", "store")
    assert (code, report) == (2, None)
    assert "--store" in err


def test_a_coordinator_that_restarts_while_it_lists_is_asked_again(server, capsys):
    server.script.listing = [0, 10, 10, 500]
    server.script.failures["GetDataset"] = [UnknownJobError("what dataset?")]
    server.script.fillings = [pb.Filling(there=1000, ended="all")]
    code, report, shown = warm(server, capsys)
    assert (code, report["samples"]) == (0, 1000)
    assert shown.startswith("10 listed\n500 listed\n")
    assert server.count("RegisterDataset") == 2


def test_a_coordinator_that_restarts_between_two_calls_is_asked_again(server, capsys):
    server.script.cache_stats = pb.CacheStats(free_bytes=2**34)
    server.script.fillings = [pb.Filling(there=4), pb.Filling(there=4), pb.Filling(there=1000, ended="all")]
    server.script.failures["GetJobStats"] = [None, None, UnknownJobError("what job?")]
    code, report, shown = warm(server, capsys)
    calls = [name for name, _ in server.calls if name in {"RegisterDataset", "OpenJob", "CloseJob"}]
    assert calls == ["RegisterDataset", "OpenJob"] * 2 + ["CloseJob"]
    assert (code, report["ended"], report["warm"]) == (0, "all", 1000)
    assert report["invocations"] == 6, "3 before it was restarted, and 3 after"
    assert "4 of 1,000" in shown


@pytest.mark.parametrize(
    ("words", "trouble", "refusal", "reason"),
    [
        ((), "", ConfigError("the coordinator has no store to fill now: full"), "store to fill now: full"),
        (("--patience", "0.2", "--to", "store"), "disk full", None, "for 0.2 s: disk full"),
        (("--patience", "0.2", "--to", "cache"), "", None, "996 samples"),
    ],
)
def test_what_does_not_go_on_ends_within_its_patience_with_a_report(
    server, capsys, words, trouble, refusal, reason
):
    server.script.cache_stats = pb.CacheStats(store="/store", store_trouble=trouble)
    server.script.fillings = [pb.Filling(there=4)]
    server.script.failures["FillUp"] = [None, refusal]
    code, report, _ = warm(server, capsys, *words)
    assert (code, report["ended"], report["warm"]) == (1, "stalled", 4)
    assert report["to_store"] == ("cache" not in words)
    assert reason in report["why"]
    assert server.count("CloseJob") == 1
