"""``superdl top``: finding a coordinator, views of real jobs, and restarts."""

import io
import tempfile

import pytest
from rich.console import Console

from superdl.main import main
from superdl.sampler import SuperSampler
from superdl.sampler.rpc import Client
from superdl.stats_command import mapping
from superdl.super_dataset import Recipe, SuperDataset
from superdl.super_wire import coordinator_pb2 as pb
from superdl.super_wire.display import shown
from superdl.super_wire.run_directory import RunDirectory
from superdl.top.command import Poller, view_of
from superdl.top.terminal import rendered
from tests.fixtures.images import SIDE

RECIPE = Recipe.image(resize=SIDE, crop=SIDE)


def text_of(view):
    console = Console(file=io.StringIO(), width=200)
    console.print(rendered(view))
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.fixture
def nowhere(monkeypatch):
    """A user without a coordinator, whose runs meet in a directory of their own."""
    monkeypatch.delenv("SUPER_COORDINATOR", raising=False)
    with tempfile.TemporaryDirectory(prefix="super-i-") as directory:
        monkeypatch.setattr(tempfile, "tempdir", directory)
        yield


def test_a_restart_is_survived_and_what_was_last_known_stays(stack, images):
    dataset = SuperDataset(images.as_uri(), RECIPE)
    client = Client(stack.address)
    with SuperSampler(dataset, batch_size=16, shuffle=True, coordinator=stack.address) as sampler:
        poller = Poller(client, shown)
        assert poller.view["images_per_s"] is None
        for ref in sampler:
            dataset[ref]
        sampler.job_stats()
        view = poller.poll()
        (job,) = view["jobs"]
        assert (job["ranks"], job["lapsed_ranks"], view["functions"][0]["name"]) == (1, 0, "local")
        assert view["functions"][0]["ended"]["answered"] > 0
        assert job["source"] in text_of(view)
        stack.kill_coordinator()
        lost = poller.poll()["unreachable"]
        assert poller.poll()["unreachable"]["since_s"] == lost["since_s"]
        assert poller.view["jobs"] == view["jobs"]
        assert "not reachable since" in text_of(poller.view)
        stack.start_coordinator()
        # The sampler's channel, which is this one's too, may be waiting to connect again.
        assert any(poller.poll()["unreachable"] is None for _ in range(100))


def test_the_only_embedded_run_is_found_and_of_several_one_must_be_named(nowhere, stack, capsys):
    for command in (["top", "--once"], ["stats"]):
        assert main(command) == 2
        assert "no embedded run" in capsys.readouterr().err
    runs = [RunDirectory.of_run(name) for name in ("ours", "others")]
    for run in runs:
        run.path.parent.mkdir(mode=0o700, exist_ok=True)
        run.create()
        run.coordinator_socket.symlink_to(stack.address.removeprefix("unix:"))
        if run is runs[0]:
            assert main(["top", "--once", "--json"]) == main(["stats", "--json"]) == 0
            assert f"unix:{run.coordinator_socket}" in capsys.readouterr().out
    assert main(["stats"]) == 2
    told = capsys.readouterr().err
    assert all(f"superdl stats --coordinator unix:{run.coordinator_socket}" in told for run in runs)


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
