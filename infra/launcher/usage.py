"""CPU of this host's part of a run, by group, which its launcher samples and tells.

All hosts tell the leader, and the leader tells the host of rank 0, where the run's report is made.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any

import psutil

from superdl.experiments.monitoring import ProcessGroups, checked_usage, group_of
from superdl.sampler.embedded import usable_cores

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from infra.launcher import Launch
    from infra.launcher.channel import Channel

__all__ = ["launched_group", "tell_usage", "usage_file", "write_usage"]

_EVERY_S = 2.0
_OURS = ("guard.py", "training.py")  # beside torchrun, which has the training command in its own, too


def launched_group(command: Sequence[str], parent: Sequence[str], name: str, training: Sequence[str]) -> str:
    """The group of a process below a launcher: by its command, its parent's and its name.

    Ranks run the ``training`` command below torchrun; forked workers have the command of their rank.
    """
    if any(word.endswith(_OURS) for word in command[:4]):
        return "supervisor"
    if command and (command[0].startswith("ray::") or command[-1].endswith("default_worker.py")):
        return "functions"
    if list(command[-len(training) :]) == list(training):
        return "workers" if list(parent) == list(command) else "trainer"
    return group_of(name, command, ("",))


async def tell_usage(channel: Channel, launch: Launch) -> None:
    """Tell the leader what this host uses, until cancelled."""
    own = psutil.Process()

    def group(process: psutil.Process) -> str:
        if process == own:
            return "supervisor"
        parent = process.parent()
        above = parent.cmdline() if parent is not None else []
        return launched_group(process.cmdline(), above, process.name(), launch.command)

    groups, cores = ProcessGroups(own, group), usable_cores()
    while True:
        read = await asyncio.to_thread(groups.read)
        used = {name: round(one.cpu_s, 3) for name, one in read.items()}
        channel.say(usage={"host": launch.cluster.current, "cores": cores, "cpu_s": used})
        await asyncio.sleep(_EVERY_S)


def usage_file(launch: Launch) -> Path:
    """Where this host's launcher writes what all hosts use."""
    return launch.directory / "hosts.jsonl"


def write_usage(file: Path, told: Any) -> None:
    """Add a host's usage to the file that rank 0 reads, with the time here, if it is one."""
    look = checked_usage(told)
    if look is not None:
        with file.open("a", encoding="utf-8") as opened:
            opened.write(json.dumps({"at_s": time.time(), **look}) + "\n")
