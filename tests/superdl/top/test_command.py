"""``superdl top``: what it finds, what it shows of real jobs, and what it survives."""

import io
import json
import shutil
import socket
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest
from rich.console import Console

from superdl.main import main
from superdl.sampler import SuperSampler
from superdl.sampler.embedded.embedded import release_all
from superdl.sampler.rpc import Client
from superdl.stats_command import mapping
from superdl.super_dataset import Recipe, SuperDataset
from superdl.super_wire import coordinator_pb2 as pb
from superdl.super_wire.redaction import shown
from superdl.super_wire.run_directory import RunDirectory
from superdl.top.command import Looks, view_of
from superdl.top.terminal import rendered
from tests.fixtures.images import SIDE

RECIPE = Recipe.image(resize=SIDE, crop=SIDE)
HOSTILE = "a\x1b[2J[red]b\u202e<img>"


def text_of(view):
    """What a terminal that takes colours gets."""
    console = Console(file=io.StringIO(), width=200, force_terminal=True, color_system="truecolor")
    console.print(rendered(view))
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.fixture
def nowhere(monkeypatch):
    """A user without a coordinator, whose runs meet in a directory of their own."""
    monkeypatch.delenv("SUPER_COORDINATOR", raising=False)
    with tempfile.TemporaryDirectory(prefix="super-i-") as directory:
        monkeypatch.setattr(tempfile, "tempdir", directory)
        yield Path(directory)


def test_a_hostile_name_is_shown_escaped_and_restarts_are_survived(stack, images, tmp_path):
    shutil.copytree(images, tmp_path / HOSTILE)
    next((tmp_path / HOSTILE).rglob("*.jpg")).with_name(f"{HOSTILE}.jpg").write_bytes(b"no JPEG")
    dataset = SuperDataset(f"file://{tmp_path / HOSTILE}", RECIPE, on_bad_sample="skip")
    client = Client(stack.address)
    with SuperSampler(dataset, batch_size=16, shuffle=True, coordinator=stack.address) as sampler:
        looks = Looks(client, shown)
        assert looks.view["images_per_s"] is None
        for ref in sampler:
            dataset[ref]
        sampler.job_stats()
        view = looks.again()
        (job,) = view["jobs"]
        assert (job["ranks"], job["lapsed_ranks"], view["functions"][0]["name"]) == (1, 0, "local")
        assert view["functions"][0]["ended"]["answered"] > 0
        told = text_of(view)
        assert "a\\x1b[2J[red]b\\u202e<img>" in told
        assert "a\\x1b[2J[red]b\\u202e<img>.jpg can never be decoded" in told
        assert "\x1b[2J" not in told
        stack.kill_coordinator()
        lost = looks.again()["unreachable"]
        assert looks.again()["unreachable"]["since_s"] == lost["since_s"]
        assert looks.view["jobs"] == view["jobs"], "what was last known stays"
        assert "not reachable since" in text_of(looks.view)
        stack.start_coordinator()
        # The sampler's channel, which is this one's too, may be waiting to connect again.
        assert any(looks.again()["unreachable"] is None for _ in range(100))


@pytest.mark.slow
def test_the_only_embedded_run_is_found_and_of_several_one_must_be_named(
    nowhere, images, capsys, monkeypatch
):
    for command in (["top", "--once"], ["stats"]):
        assert main(command) == 2
        assert "no embedded run" in capsys.readouterr().err
    monkeypatch.setenv("SUPER_STORE", str(nowhere / "store"))
    try:
        dataset = SuperDataset(images.as_uri(), RECIPE)
        with SuperSampler(dataset, batch_size=16, shuffle=True) as sampler:
            assert "; run superdl top " in capsys.readouterr().err
            dataset[next(iter(sampler))]
            assert main(["top", "--once", "--json"]) == 0
            view = json.loads(capsys.readouterr().out)
            assert view["jobs"][0]["job"] == sampler.job
            assert view["over_s"] >= 1
            assert view["cache"]["store"].endswith("/store")
            assert main(["stats", "--json"]) == 0
            assert json.loads(capsys.readouterr().out)["jobs"][0]["job"] == sampler.job
            with ExitStack() as stack:
                parent = RunDirectory.of_this_user()[0].path.parent
                for name in ("gone", "silent"):
                    other = RunDirectory(parent / name)
                    other.create()
                    listener = stack.enter_context(socket.socket(socket.AF_UNIX))
                    listener.bind(str(other.coordinator_socket))
                listener.listen()
                assert main(["stats"]) == 2
            told = capsys.readouterr().err
            assert "2 embedded runs" in told
            assert "superdl stats --coordinator unix:" in told
    finally:
        release_all()


def test_rates_are_differences_also_over_a_restart_and_for_who_is_new():
    def answer(*jobs, ended=()):
        executor = pb.ExecutorStats(name="lambda", ended=ended)
        return mapping(pb.JobStatsList(jobs=jobs, executors=[executor]))

    def job(name, hits, wait_s):
        return pb.JobStats(
            job=name, cache_hits=hits, stall_causes=[pb.StallTotal(cause="limits", wait_s=wait_s)]
        )

    before = answer(job("a", 900, 3.0))
    ended = [pb.RequestsEnded(outcome="throttled", requests=4)]
    view = view_of(before, answer(job("a", 100, 5.0), job("new", 50, 3.0), ended=ended), 2.0)
    assert [one["images_per_s"] for one in view["jobs"]] == [50.0, 25.0]
    assert view["images_per_s"] == 75.0
    assert view["waits"] == {"limits": 2.5}
    assert view["functions"][0]["ended_per_s"] == {"throttled": 2.0}
    assert view_of(before, before, 0.0)["images_per_s"] is None
