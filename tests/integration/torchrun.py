"""Start ranks with torchrun as users do, through the embedded default, and read their records."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil

from tests.fixtures.plans import global_span

RANK = Path(__file__).with_name("ddp_rank.py")
ROOT = RANK.parents[2]
LAUNCH_TIMEOUT_S = 180.0
END_TIMEOUT_S = 30.0


def launch(ranks, temporary, images, out, **settings):
    """Run ``ranks`` ranks to completion as one run on this host. Return their stderr if it failed, else "".

    Ranks that hang are killed, and fail the test.
    """
    out.mkdir(exist_ok=True)
    arguments = {"source": images.as_uri(), "out": str(out)} | settings
    return run_to_its_end([*torchrun(ranks), str(RANK), json.dumps(arguments)], temporary)


def torchrun(ranks):
    """The command prefix that starts a program as ``ranks`` ranks on this host."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
    return [*command, "--nproc-per-node", str(ranks), "--max-restarts", "0"]


def run_to_its_end(command, temporary, **variables):
    """Run a command that starts ranks. Return its stderr if it failed, else "".

    A command that hangs is killed, and fails the test.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SUPER_")}
    environment |= {"TMPDIR": str(temporary), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment |= {"SUPER_STORE": "none", "SUPER_STATE": "none"} | variables
    process = subprocess.Popen(  # our own program
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        _, errors = process.communicate(timeout=LAUNCH_TIMEOUT_S)
    finally:
        if process.poll() is None:
            for member in [*psutil.Process(process.pid).children(recursive=True), process]:
                member.kill()
            process.communicate(timeout=END_TIMEOUT_S)
    return errors if process.returncode else ""


def written(out, ranks):
    """Read the record of each rank."""
    return [json.loads((out / f"rank{rank}.json").read_text()) for rank in range(ranks)]


def in_order(of_ranks):
    """The samples of a pass over all ranks as (epoch, position, key) in global order, without padding.

    Asserts that all ranks have batches of the same positions and equal lengths.
    """
    together = []
    for batches in zip(*of_ranks, strict=True):
        (place,) = {(batch["epoch"], batch["position"]) for batch in batches}
        assert len({len(batch["keys"]) for batch in batches}) == 1
        assert [batch["rank"] for batch in batches] == list(range(len(batches)))
        for batch in batches:
            pairs = zip(batch["keys"], batch["padding"], strict=True)
            together += [(*place, key) for key, padding in pairs if not padding]
    return together


def planned(images, plan, epoch, start=0, stop=None):
    """The samples that a plan gives all ranks, in order, from position ``start`` to before ``stop``."""
    keys = sorted(str(path.relative_to(images)).encode() for path in images.glob("*/*.jpg"))
    stop = plan.batches_per_epoch if stop is None else stop
    indices = global_span(plan, epoch, start, stop)
    places = (start + number // plan.global_batch_size for number in range(len(indices)))
    return [(epoch, place, keys[index].decode()) for place, index in zip(places, indices, strict=True)]


def assert_none_is_left(temporary):
    """Wait, up to a bound, until the embedded default has ended and removed its sockets."""
    deadline = time.monotonic() + END_TIMEOUT_S
    while left := [path for path in temporary.rglob("*") if path.is_socket()]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
