"""``superdl warm``: what it refuses, and a coordinator that restarts or has a full store."""

import json

import pytest

from superdl.main import main
from superdl.super_wire import coordinator_pb2 as pb
from superdl.super_wire.errors import ConfigError, UnknownJobError
from superdl.super_wire.recipe import Recipe
from tests.sampler.scripted_coordinator import ScriptedCoordinator

SIZES = ["--resize", "256", "--crop", "224"]
NOWHERE = ["--coordinator", "unix:/nowhere/coordinator.sock"]


@pytest.fixture(autouse=True)
def no_coordinator(monkeypatch):
    monkeypatch.delenv("SUPER_COORDINATOR", raising=False)


@pytest.fixture
def server():
    running = ScriptedCoordinator()
    yield running
    running.stop()


def warm(server, capsys, *words, source="s3://bucket/train", sizes=SIZES):
    """Exit code, report and what is said beside it."""
    code = main(["warm", source, "--coordinator", server.address, *sizes, "--json", *words])
    out, err = capsys.readouterr()
    return code, json.loads(out), err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (SIZES, "needs a coordinator that keeps running"),
        (NOWHERE, "--resize 256 --crop 224, or --recipe FILE.json"),
        ([*NOWHERE, *SIZES, "--recipe", "r.json"], "with --recipe FILE.json"),
        ([*NOWHERE, "--recipe", "/nowhere/r.json"], "cannot read --recipe /nowhere/r.json"),
        ([*NOWHERE, *SIZES, "--max-usd", "0"], "--max-usd must be above 0"),
        ([*NOWHERE, *SIZES, "--max-bytes", "4"], "--max-bytes must be a size of at least 1mb"),
        ([*NOWHERE, *SIZES, "--patience", "nan"], "--patience must be above 0"),
        (["--coordinator", "here", *SIZES], "--coordinator must be 'host:port' or 'unix:/path/to.sock'"),
        ([*NOWHERE, "--resize", "0"], "size"),
    ],
)
def test_wrong_use_is_told_in_a_line(capsys, words, reason):
    assert main(["warm", "/data", *words]) == 2
    message = capsys.readouterr().err
    assert message.startswith("superdl warm: ")
    assert reason in message


def test_random_and_broken_recipes_are_refused(tmp_path, capsys):
    random = [{"op": "random_resized_crop", "size": 64}]
    texts = {json.dumps(random): "this recipe is random", Recipe(random).json: "this recipe is random"}
    texts |= {"{": "cannot be read", '{"steps": []}': "pipeline", '[{"op": "fly"}]': "fly"}
    file = tmp_path / "r.json"
    for text, reason in texts.items():
        file.write_text(text)
        assert main(["warm", "/data", *NOWHERE, "--recipe", str(file)]) == 2
        assert reason in capsys.readouterr().err


def test_a_store_that_is_not_there_is_refused(server, capsys):
    assert main(["warm", "/data", "--coordinator", server.address, *SIZES, "--to", "store"]) == 2
    assert "has no store" in capsys.readouterr().err


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


def test_a_store_that_gets_full_ends_it_with_a_report(server, capsys):
    server.script.cache_stats = pb.CacheStats(store="/store")
    server.script.fillings = [pb.Filling(there=4)]
    server.script.failures["FillUp"] = [None, ConfigError("the coordinator has no store to fill now: full")]
    code, report, _ = warm(server, capsys)
    assert (code, report["ended"], report["warm"], report["to_store"]) == (1, "stalled", 4, True)
    assert report["why"].endswith("no store to fill now: full")
    assert server.count("CloseJob") == 1


@pytest.mark.parametrize(
    ("words", "store_trouble", "ended", "reason"),
    [
        (
            ["--patience", "0.2"],
            "",
            "stalled",
            "none of 996 samples has arrived for 0.2 s: are the coordinator's",
        ),
        (["--patience", "0.2", "--to", "store"], "disk full", "stalled", "for 0.2 s: disk full"),
    ],
)
def test_waiting_is_bounded(server, capsys, words, store_trouble, ended, reason):
    server.script.cache_stats = pb.CacheStats(store="/store", store_trouble=store_trouble)
    server.script.fillings = [pb.Filling(there=4)]
    code, report, _ = warm(server, capsys, *words)
    assert (code, report["ended"], report["warm"]) == (1, ended, 4)
    assert reason in report["why"]
    assert server.count("CloseJob") == 1
