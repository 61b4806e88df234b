"""``superdl warm`` where something bounds, breaks or interrupts it: money, time, killed parts, rights."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
from rich.progress import Progress

from superdl.main import main
from tests.fixtures.images import write_images
from tests.fixtures.stack import Stack
from tests.integration.warming import records, told, warm


class Hook:
    """Does something once, when a sample is warm."""

    def __init__(self, monkeypatch, act):
        self.act, self.done = act, False
        update = Progress.update

        def updating(progress, task, *, completed, phrase):
            update(progress, task, completed=completed, phrase=phrase)
            if completed and not self.done:
                self.done = True
                self.act()

        monkeypatch.setattr(Progress, "update", updating)


@contextmanager
def half_warm(tmp_path):
    """A running stack and 800 images, a third of which are warm; its functions are suspended."""
    with Stack(arguments=("--slots", "1", "--request-samples", "8")) as stack:
        source = write_images(tmp_path, 800)
        assert warm(stack, source, "--max-bytes", "1mb") == 0
        functions = stack.functions()
        for process in functions:
            process.suspend()
        try:
            yield stack, source
        finally:
            for process in functions:
                process.resume()


def test_a_cache_that_is_gone_ends_it_with_a_report(tmp_path, capsys, monkeypatch):
    with half_warm(tmp_path) as (stack, source):
        capsys.readouterr()
        hook = Hook(monkeypatch, stack.valkey.kill)
        assert warm(stack, source, "--json", "--patience", "1") == 1
        report = told(capsys)
        assert hook.done
        assert (report["ended"], report["samples"]) == ("stalled", 800)
        assert 0 < report["warm"] < 800
        assert report["why"]


def test_money_bounds_it(tmp_path, capsys):
    prices = tmp_path / "prices.toml"
    prices.write_text("[local]\ninvocation = 0.001\n")
    with Stack(arguments=("--slots", "2", "--prices", str(prices), "--request-samples", "2")) as stack:
        source = write_images(tmp_path / "images", 800)
        assert warm(stack, source, "--json", "--max-usd", "0.2") == 1
        report = told(capsys)
        assert report["ended"] == "max_usd"
        assert 0.1 < report["usd"] <= 0.25  # the last requests are smaller, and so dearer, than the mean
        assert 0 < report["warm"] <= 500
        assert report["invocations"] * 0.001 == pytest.approx(report["usd"])
        assert warm(stack, source, "--json", "--max-usd", "0.00001") == 1
        assert told(capsys)["invocations"] == 0


@pytest.mark.slow
def test_functions_and_a_coordinator_that_are_killed_are_got_over(tmp_path, capsys, monkeypatch):
    with Stack(arguments=("--slots", "2")) as stack:
        for number, act in enumerate((lambda: kill_functions(stack), lambda: restart(stack))):
            hook = Hook(monkeypatch, act)
            source = write_images(tmp_path / str(number), 700, seed=number)
            assert warm(stack, source, "--json") == 0
            assert hook.done
            assert told(capsys)["warm"] == 700
            monkeypatch.undo()
        assert records(stack) == 1400


def kill_functions(stack):
    for process in stack.functions():
        process.kill()


def restart(stack):
    stack.kill_coordinator()
    stack.start_coordinator()


def test_an_interrupt_ends_it_with_a_report(tmp_path, capsys, monkeypatch):
    def interrupt():
        raise KeyboardInterrupt

    with half_warm(tmp_path) as (stack, source):
        capsys.readouterr()
        hook = Hook(monkeypatch, interrupt)
        assert warm(stack, source, "--json") == 130
        report = told(capsys)
        assert hook.done
        assert report["ended"] == "interrupted"
        assert 0 < report["warm"] < 800
        assert main(["stats", "--coordinator", stack.address]) == 0
        assert "no open jobs" in capsys.readouterr().out
        monkeypatch.undo()
        for process in stack.functions():
            process.resume()
        assert warm(stack, source, "--json") == 0
        assert told(capsys)["hits"] >= report["warm"]
