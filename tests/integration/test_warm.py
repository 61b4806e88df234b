"""``superdl warm`` over a real coordinator, cache and functions: what it leaves in the cache, what it tells,
when it stops.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from experiments.warming import filling
from experiments.warming.show import WarmProgress
from sampler import SuperSampler
from super_dataset import Recipe, SuperDataset, SuperLoader
from super_wire.keys import cache_keys
from superdl.main import main
from tests.fixtures.images import expected_pixels, write_images
from tests.fixtures.stack import Stack
from tests.integration.test_networks import COORDINATOR, FUNCTION, let_in

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from super_wire.batch_ref import BatchRef

SIDE = 32
LARGE = 128


@pytest.fixture(scope="module")
def warmed_by() -> Iterator[Stack]:
    """A stack whose cache holds all that these tests put there."""
    running = Stack(arguments=("--workers", "2"))
    running.start()
    yield running
    running.close()


@pytest.fixture
def pressed() -> Iterator[Stack]:
    """A cache of 24 MB, of which 18 are for records."""
    running = Stack(maxmemory="24mb", arguments=("--workers", "2"))
    running.start()
    yield running
    running.close()


def warm(stack: Stack, source: Path, *options: str, side: int = SIDE) -> int:
    sizes = ("--resize", str(side), "--crop", str(side))
    return main(["warm", str(source), "--coordinator", stack.address, *sizes, *options])


def told(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    mapping: dict[str, Any] = json.loads(capsys.readouterr().out)
    return mapping


def plan(
    stack: Stack, source: Path, *, side: int = SIDE, **order: Any
) -> tuple[list[BatchRef], SuperDataset]:
    """What a coming job reads, in its order."""
    dataset = SuperDataset(source, Recipe.image(resize=side, crop=side))
    with SuperSampler(dataset, batch_size=10, coordinator=stack.address, **order) as sampler:
        return list(sampler), dataset


def there(stack: Stack, keys: list[bytes]) -> list[bool]:
    with stack.valkey.client() as client:
        return [bool(client.exists(key)) for key in keys]


def records(stack: Stack) -> int:
    with stack.valkey.client() as client:
        return len(client.keys("super:r1:*"))


def never_full(stack: Stack) -> bool:
    with stack.valkey.client() as client:
        memory = client.info("memory")
        refused = "errorstat_OOM" in client.info("errorstats")
        return bool(memory["used_memory_peak"] <= memory["maxmemory"]) and not refused


def test_a_job_that_follows_finds_everything(
    warmed_by: Stack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_images(tmp_path, 150, seed=1)
    assert warm(warmed_by, source, "--yes", "--json") == 0
    report = told(capsys)
    assert (report["samples"], report["warm"], report["produced"], report["failed"]) == (150, 150, 150, 0)
    assert report["ended"] == "all"
    assert report["estimate"]["fits"] == 150
    assert report["estimate"]["gets"] == report["source_requests"] == 0
    assert report["record_bytes"] == 150 * (64 + SIDE * SIDE * 3)

    dataset = SuperDataset(source, Recipe.image(resize=SIDE, crop=SIDE), return_info=True)
    with SuperSampler(dataset, batch_size=20, coordinator=warmed_by.address) as sampler:
        found = list(SuperLoader(dataset, sampler))
        stats = sampler.job_stats()
    pixels = {image.permute(1, 2, 0).numpy().tobytes() for images, _, _ in found for image in images}
    assert pixels == set(expected_pixels(source, resize=SIDE, crop=SIDE))
    assert [info.misses for _, _, info in found] == [0] * len(found)
    assert (stats.samples_produced, stats.invocations) == (0, 0)

    assert warm(warmed_by, source, "--yes", "--json") == 0
    again = told(capsys)
    assert (again["warm"], again["hits"], again["produced"], again["invocations"]) == (150, 150, 0, 0)


def test_what_cannot_be_decoded_is_listed(
    warmed_by: Stack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_images(tmp_path, 40, seed=2)
    (source / "ant" / "broken.jpg").write_bytes(b"no image")
    (source / "bee" / "empty.jpg").write_bytes(b"")
    for _ in range(2):
        assert warm(warmed_by, source, "--yes", "--json") == 1
        report = told(capsys)
        assert (report["ended"], report["warm"], report["failed"]) == ("all", 40, 2)
        reasons = {failure["key"]: failure["reason"] for failure in report["failures"]}
        assert reasons.keys() == {"ant/broken.jpg", "bee/empty.jpg"}
        assert reasons["ant/broken.jpg"].startswith("not_an_image: ")
        assert reasons["bee/empty.jpg"].startswith("empty: ")
    assert warm(warmed_by, source, "--yes") == 1
    assert "  ant/broken.jpg: not_an_image: " in capsys.readouterr().err


def test_an_estimate_produces_nothing(
    warmed_by: Stack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_images(tmp_path, 30, seed=3)
    before = records(warmed_by)
    assert warm(warmed_by, source, "--estimate", "--json") == 0
    estimate = told(capsys)["estimate"]
    assert (estimate["samples"], estimate["fits"], estimate["invocations"]) == (30, 30, 1)
    assert estimate["usd"] == {"local": 0.0}
    assert warm(warmed_by, source) == 2
    assert "--yes begins without asking" in capsys.readouterr().err
    assert records(warmed_by) == before


@pytest.mark.parametrize(("answer", "made"), [("y", 30), ("n", 0), ("", 0)])
def test_a_terminal_is_asked(
    warmed_by: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, made: int
) -> None:
    source = write_images(tmp_path, 30, seed=10 + len(answer) + ord((answer or "a")[0]))
    before = records(warmed_by)
    ours, theirs = os.openpty()
    with os.fdopen(theirs, encoding="utf-8") as terminal, os.fdopen(os.dup(theirs), "w") as screen:
        monkeypatch.setattr(sys, "stdin", terminal)
        monkeypatch.setattr(sys, "stderr", screen)
        os.write(ours, answer.encode() + b"\n")
        assert warm(warmed_by, source) == 0
        screen.flush()
        monkeypatch.undo()
    shown = os.read(ours, 65536).decode()
    os.close(ours)
    assert "fill the cache? [y/N]" in shown
    assert "samples: 30" in shown
    assert records(warmed_by) - before == made


def test_a_cache_that_is_too_small_holds_what_is_read_first(
    pressed: Stack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_images(tmp_path, 600, side=LARGE)
    assert warm(pressed, source, "--yes", "--json", "--shuffle", "--seed", "7", side=LARGE) == 0
    report = told(capsys)
    fits = report["estimate"]["fits"]
    assert 300 < fits < 400
    assert (report["ended"], report["dropped"], report["failed"]) == ("full", 0, 0)
    assert 0.9 * fits < report["warm"] <= fits
    assert never_full(pressed)
    present = plan_presence(pressed, source, seed=7)
    assert all(present[: report["warm"]])
    assert not any(present[fits:])


def plan_presence(stack: Stack, source: Path, *, seed: int) -> list[bool]:
    """What of an epoch's samples is there, in its order; seen before the asking changes it."""
    with stack.valkey.client() as client:
        found = set(client.keys("super:r1:*"))
    refs, _ = plan(stack, source, side=LARGE, seed=seed)
    return [key in found for ref in refs for key in cache_keys(ref.sample_ids)]


def test_what_others_have_in_the_cache_stays(
    pressed: Stack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = write_images(tmp_path / "a", 200, side=LARGE)
    second = write_images(tmp_path / "b", 300, side=LARGE, seed=5)
    assert warm(pressed, first, "--yes", "--json", side=LARGE) == 0
    assert told(capsys)["warm"] == 200
    with pressed.valkey.client() as client:
        theirs = client.keys("super:r1:*")
    assert warm(pressed, second, "--yes", "--json", side=LARGE) == 0
    report = told(capsys)
    assert (report["ended"], report["dropped"]) == ("full", 0)
    assert 0 < report["warm"] < 200
    assert warm(pressed, second, "--yes", "--json", side=LARGE) == 1  # there is no room for a look ahead
    assert told(capsys)["ended"] == "full"
    assert all(there(pressed, theirs))


@pytest.mark.slow
@pytest.mark.parametrize(("lookahead", "least"), [(1, 0.9), (300, 0.8), (10_000, 0.0)])
def test_however_far_a_coordinator_looks_ahead_it_drops_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lookahead: int, least: float
) -> None:
    ahead = ("--lookahead-batches", str(lookahead))
    stack = Stack(maxmemory="24mb", arguments=("--workers", "2", *ahead))
    stack.start()
    try:
        source = write_images(tmp_path, 600, side=LARGE)
        code = warm(stack, source, "--yes", "--json", side=LARGE)
        report = told(capsys)
        assert (report["ended"], report["dropped"]) == ("full", 0)
        fits = report["estimate"]["fits"]
        assert least * fits <= report["warm"] <= fits
        assert code == (0 if report["warm"] else 1)
    finally:
        stack.close()


def test_money_bounds_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text("[local]\ninvocation = 0.001\n")
    stack = Stack(arguments=("--workers", "2", "--prices", str(prices), "--request-samples", "2"))
    stack.start()
    try:
        source = write_images(tmp_path / "images", 800)
        assert warm(stack, source, "--yes", "--json", "--max-usd", "0.2") == 1
        report = told(capsys)
        assert report["ended"] == "max_usd"
        assert 0.1 < report["usd"] <= 0.25  # the last requests are smaller, and so dearer, than the mean
        assert 0 < report["warm"] <= 500
        assert report["invocations"] * 0.001 == pytest.approx(report["usd"])
        assert warm(stack, source, "--yes", "--json", "--max-usd", "0.00001") == 1
        assert told(capsys)["invocations"] == 0
    finally:
        stack.close()


@pytest.mark.slow
def test_the_coordinators_own_cap_ends_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text("[local]\ninvocation = 0.01\n")
    stack = Stack(arguments=("--workers", "2", "--prices", str(prices), "--max-usd", "0.05"))
    stack.start()
    try:
        source = write_images(tmp_path / "images", 600)
        assert warm(stack, source, "--yes", "--json") == 1
        report = told(capsys)
        assert report["ended"] == "spending_cap"
        assert "--max-usd" in report["why"]
    finally:
        stack.close()


class Hook:
    """Does something once, when the first samples are warm."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, act: Any) -> None:
        self.act, self.done = act, False
        tell = WarmProgress.tell
        monkeypatch.setattr(filling, "_STATS_EVERY_S", 0.0)

        def telling(progress: WarmProgress, report: Any) -> None:
            tell(progress, report)
            if report.warm and not self.done:
                self.done = True
                self.act()

        monkeypatch.setattr(WarmProgress, "tell", telling)


@pytest.mark.slow
def test_functions_and_a_coordinator_that_are_killed_are_got_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = Stack(arguments=("--workers", "2"))
    stack.start()
    try:
        for number, act in enumerate((lambda: kill_functions(stack), lambda: restart(stack))):
            hook = Hook(monkeypatch, act)
            source = write_images(tmp_path / str(number), 700, seed=number)
            assert warm(stack, source, "--yes", "--json") == 0
            assert hook.done
            assert told(capsys)["warm"] == 700
            monkeypatch.undo()
        assert records(stack) == 1400
    finally:
        stack.close()


def kill_functions(stack: Stack) -> None:
    for process in stack.functions():
        process.kill()


def restart(stack: Stack) -> None:
    stack.kill_coordinator()
    stack.start_coordinator()


def test_an_interrupt_ends_it_with_a_report(
    warmed_by: Stack, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    hook = Hook(monkeypatch, interrupt)
    source = write_images(tmp_path, 400, seed=4)
    assert warm(warmed_by, source, "--yes", "--json") == 130
    report = told(capsys)
    assert hook.done
    assert report["ended"] == "interrupted"
    assert 0 < report["warm"] < 400
    monkeypatch.undo()
    assert warm(warmed_by, source, "--yes", "--json") == 0
    assert told(capsys)["hits"] >= report["warm"]


@pytest.mark.slow
def test_a_ctrl_c_at_a_terminal_ends_it(tmp_path: Path) -> None:
    stack = Stack(maxmemory="2gb", arguments=("--workers", "1"))
    stack.start()
    ours, theirs = os.openpty()
    try:
        source = write_images(tmp_path, 6000, side=LARGE)
        words = ("--coordinator", stack.address, "--resize", "128", "--crop", "128")
        command = [sys.executable, "-P", "-m", "superdl.main", "warm", str(source), *words]
        os.write(ours, b"y\n")
        with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs) as process:
            shown = b""
            while b" made " not in shown:  # the bar is up; ends with the process at the latest
                shown += os.read(ours, 65536)
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
        shown += os.read(ours, 65536)
        assert b"interrupted" in shown
        assert b"of 6,000 samples are in the cache" in shown
        assert b"Traceback" not in shown
    finally:
        os.close(theirs)
        os.close(ours)
        stack.close()


@pytest.mark.slow
def test_functions_that_hang_end_its_patience(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = Stack(arguments=("--workers", "1"))
    stack.start()
    try:
        stopped = stack.functions()
        for process in stopped:
            process.suspend()
        source = write_images(tmp_path, 10)
        assert warm(stack, source, "--yes", "--json", "--patience", "0.5") == 1
        report = told(capsys)
        assert report["ended"] == "stalled"
        assert "samples have not come for 0.5 s, the first of them ant/00000.jpg" in report["why"]
        assert warm(stack, source, "--yes", "--json", "--timeout", "0.2") == 1
        assert told(capsys)["ended"] == "timeout"
        for process in stopped:
            process.resume()
    finally:
        stack.close()


def test_a_readers_user_may_do_it_and_one_without_getrange_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    users = {"SUPER_CACHE_USERNAME": "coordinator", "SUPER_CACHE_PASSWORD": "word"}
    stack = Stack(arguments=("--workers", "1"), environment=users)
    stack.valkey.start()
    try:
        let_in(stack.valkey, "coordinator", f"{COORDINATOR} {FUNCTION}", "super:*")
        let_in(stack.valkey, "reader", "get getrange xadd cluster|slots asking", "super:r1:*", "super:n1:*")
        let_in(stack.valkey, "blind", "get xadd cluster|slots asking", "super:r1:*", "super:n1:*")
        stack.start_coordinator()
        source = write_images(tmp_path, 10)
        monkeypatch.setenv("SUPER_CACHE_PASSWORD", "word")
        monkeypatch.setenv("SUPER_CACHE_USERNAME", "blind")
        assert warm(stack, source, "--yes") == 1
        assert "superdl warm needs GETRANGE on super:r1:*" in capsys.readouterr().err
        monkeypatch.setenv("SUPER_CACHE_USERNAME", "reader")
        assert warm(stack, source, "--yes", "--json") == 0
        assert told(capsys)["warm"] == 10
    finally:
        stack.close()
