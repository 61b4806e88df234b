"""``superdl warm``: what it refuses and predicts, and a coordinator that restarts or has a full store."""

from __future__ import annotations

import json

import pytest

from superdl.coordinator.core import footprint
from superdl.main import main
from superdl.super_wire import coordinator_pb2 as pb
from superdl.super_wire.errors import ConfigError, UnknownJobError
from superdl.super_wire.recipe import Recipe
from tests.sampler.scripted_coordinator import ScriptedCoordinator

SIZES = ["--resize", "256", "--crop", "224"]
RECORD_BYTES = 64 + 224 * 224 * 3
NOWHERE = ["--coordinator", "unix:/nowhere/coordinator.sock"]
IMAGENET = 1_281_167


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
        (SIZES, "needs a coordinator that stays"),
        (NOWHERE, "--resize 256 --crop 224, or --recipe FILE.json"),
        ([*NOWHERE, *SIZES, "--recipe", "r.json"], "or --recipe FILE.json"),
        ([*NOWHERE, "--recipe", "/nowhere/r.json"], "--recipe /nowhere/r.json cannot be read"),
        ([*NOWHERE, *SIZES, "--max-usd", "0"], "--max-usd is above 0"),
        ([*NOWHERE, *SIZES, "--max-bytes", "4"], "--max-bytes is a size of at least 1mb"),
        ([*NOWHERE, *SIZES, "--patience", "nan"], "--patience is above 0"),
        ([*NOWHERE, *SIZES, "--timeout", "-1"], "--timeout is above 0"),
        (["--coordinator", "here", *SIZES], "--coordinator is 'host:port' or 'unix:/path/to.sock'"),
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


@pytest.mark.parametrize("free_bytes", [2**34, 10**7, -5])
def test_what_fits_in_the_cache_is_counted_as_the_coordinator_counts(server, capsys, free_bytes):
    server.script.size = IMAGENET
    server.script.cache_stats = pb.CacheStats(budget_bytes=2**34, free_bytes=free_bytes)
    code, report, _ = warm(server, capsys, "--estimate")
    each = int(footprint([RECORD_BYTES])[0])
    fits = max(0, free_bytes // each)
    assert (code, server.count("OpenJob")) == (0, 0)
    assert report == {
        "estimate": {
            "samples": IMAGENET,
            "record_bytes": RECORD_BYTES,
            "fits": fits,
            "cache_bytes": fits * each,
            "invocations": -(-fits // 64),
            "gets": fits,
            "usd": {},
        }
    }


@pytest.mark.parametrize(("room_bytes", "fits"), [(0, IMAGENET), (10**9 + 1000, 6640), (1, 0)])
def test_a_store_takes_records_as_they_are(server, capsys, room_bytes, fits):
    server.script.size = IMAGENET
    server.script.cache_stats = pb.CacheStats(
        store="/store", store_used_bytes=1000, store_room_bytes=room_bytes
    )
    estimate = warm(server, capsys, "--estimate")[1]["estimate"]
    assert (estimate["fits"], estimate["cache_bytes"]) == (fits, fits * RECORD_BYTES)


def test_without_a_fixed_size_all_samples_are_counted(server, capsys):
    server.script.prices = [pb.ExecutorPrices(name="local", invocation=0.01, record_gb=1.0)]
    _, report, shown = warm(server, capsys, "--estimate", sizes=["--resize", "96"])
    estimate = report["estimate"]
    assert (estimate["record_bytes"], estimate["fits"], estimate["cache_bytes"]) == (None, None, None)
    assert (estimate["gets"], estimate["invocations"]) == (1000, 16)
    assert estimate["usd"] == pytest.approx({"local": 0.16})
    assert "unknown until the first are there" in shown


def test_money_is_invocations_work_gets_and_transfer(server, capsys):
    server.script.size = 6400
    server.script.cache_stats = pb.CacheStats(free_bytes=2**34)
    units = {"invocation": 0.001, "gb_s": 0.01, "source_request": 0.1, "source_gb": 2.0, "record_gb": 3.0}
    server.script.prices = [pb.ExecutorPrices(name=name, **units) for name in ("local", "lambda")]
    transfer = 6400 / 2**30 * (110_000 * 2.0 + RECORD_BYTES * 3.0)
    for source, gets in (("s3://bucket/train", 6400), ("file:///data", 0)):
        usd = warm(server, capsys, "--estimate", source=source)[1]["estimate"]["usd"]
        for executor, core in (("local", 1.0), ("lambda", 0.5)):
            gb_s = (6400 * 0.00191 / core + 100 * 0.05) * 1769 / 1024
            assert usd[executor] == pytest.approx(100 * 0.001 + gb_s * 0.01 + gets * 0.1 + transfer)


def test_a_coordinator_that_restarts_while_it_lists_is_asked_again(server, capsys):
    server.script.listing = [0, 10, 10, 500]
    server.script.failures["GetDataset"] = [UnknownJobError("what dataset?")]
    code, report, shown = warm(server, capsys, "--estimate")
    assert (code, report["estimate"]["samples"]) == (0, 1000)
    assert shown.startswith("10 listed\n500 listed\n")
    assert server.count("RegisterDataset") == 2


def test_a_coordinator_that_restarts_between_two_calls_is_asked_again(server, capsys):
    server.script.cache_stats = pb.CacheStats(free_bytes=2**34, dropped_samples=5)
    server.script.fillings = [pb.Filling(there=4), pb.Filling(there=4), pb.Filling(there=1000, ended="all")]
    server.script.failures["GetJobStats"] = [None, None, UnknownJobError("what job?")]
    code, report, shown = warm(server, capsys, "--yes")
    calls = [name for name, _ in server.calls if name in {"RegisterDataset", "OpenJob", "CloseJob"}]
    assert calls == ["RegisterDataset", "OpenJob"] * 2 + ["CloseJob"]
    assert (code, report["ended"], report["warm"]) == (0, "all", 1000)
    assert report["invocations"] == 6, "3 before it was restarted, and 3 after"
    assert report["dropped"] == 0, "its count has not risen"
    assert "4 of 1,000" in shown


def test_a_store_that_gets_full_ends_it_with_a_report(server, capsys):
    server.script.cache_stats = pb.CacheStats(store="/store")
    server.script.fillings = [pb.Filling(there=4)]
    server.script.failures["FillUp"] = [None, ConfigError("the coordinator has no store to fill now: full")]
    code, report, _ = warm(server, capsys, "--yes")
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
            "none of 996 samples has come for 0.2 s: are the coordinator's",
        ),
        (["--patience", "0.2", "--to", "store"], "disk full", "stalled", "for 0.2 s: disk full"),
        (["--timeout", "0.2"], "", "timeout", "0.2 s are over"),
    ],
)
def test_waiting_is_bounded(server, capsys, words, store_trouble, ended, reason):
    server.script.cache_stats = pb.CacheStats(store="/store", store_trouble=store_trouble)
    server.script.fillings = [pb.Filling(there=4)]
    code, report, _ = warm(server, capsys, "--yes", *words)
    assert (code, report["ended"], report["warm"]) == (1, ended, 4)
    assert reason in report["why"]
    assert server.count("CloseJob") == 1
