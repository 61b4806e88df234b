"""All commands of the studies' pages run, with little data, on hosts beyond loopback.

The hosts are processes in a network namespace, each with its name from the page and a public address.
"""

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from PIL import Image

from superdl.experiments.models import declare_operators
from tests.pages.markdown import ROOT, commands_of

PAGES = sorted((ROOT / "docs/experiments").glob("*.md"))
ADDRESSES = {
    name: f"198.51.100.{number}" for number, name in enumerate(("cpu-1", "cpu-2", "gpu-1", "gpu-2"), 11)
}
NAMESPACE = ("unshare", "-rnmpf", "--mount-proc", "--kill-child")
TINY = "epochs=1 training.steps_per_epoch=2 loader.batch_size=8"
CHANGED = {
    "'$(hostname)'": "HOST",
    "--nproc-per-node 4": "--nproc-per-node 2",
    "--nproc-per-node 8": "--nproc-per-node 2",
    "--cores 4": "--cores 1",
    "=/data/": "=$PWD/published/",
    "ROOTS=/data": "ROOTS=$PWD/published",
    "'SUPER_FILE_ROOTS=$PWD'": 'SUPER_FILE_ROOTS="$PWD"',
    "runs/resnet50_heterogeneous-ALONE": "$(ls -d runs/* | head -1)",
    "runs/resnet50_heterogeneous-ADDED": "$(ls -d runs/* | tail -1)",
    "superdl compare": "superdl compare --warmup-epochs 0",
    "output=s3://bucket": "output=runs/bucket",
}
SHRUNK = {
    "resnet18_ddp_finetune": "recipe.resize=36 recipe.crop=32",
    "vit_cifar10": "model.name=vit_mini model.weights=null recipe.resize=32 recipe.crop=32",
    "hpo_sharing": 'recipe.resize=36 recipe.crop=32 model.name=small_cnn trials={"a":{},"b":{}}',
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    """Write a hosts file for the namespace."""
    tried = [*NAMESPACE, "ip", "link", "set", "lo", "up"]
    if shutil.which("unshare") is None or subprocess.run(tried, capture_output=True, check=False).returncode:
        pytest.skip("cannot create a network namespace: unshare and ip are missing or not permitted")
    file = tmp_path_factory.mktemp("names") / "hosts"
    own = {"localhost": "127.0.0.1", socket.gethostname(): "127.0.0.1"}
    lines = [f"{address} {name}" for name, address in (own | ADDRESSES).items()]
    file.write_text("\n".join(lines) + "\n")
    return file


def published_sets(directory):
    """Write what pages expect in /data: photos in class folders, Tiny ImageNet as unpacked, and weights."""
    for number, (place, name) in enumerate(
        [(f"hymenoptera_data/{split}/{kind}", "jpg") for split in ("train", "val") for kind in "ab"]
        + [(f"tiny-imagenet-200/train/n{kind}/images", "JPEG") for kind in "ab"]
        + [("tiny-imagenet-200/val/images", "JPEG")]
    ):
        (directory / place).mkdir(parents=True)
        for index in range(12):
            image = Image.new("RGB", (80, 72), (20 * index, 40 * number % 256, 90))
            image.save(directory / place / f"{index}.{name}")
    rows = [f"{index}.JPEG\tn{'ab'[index % 2]}\t0\t0\t9\t9\n" for index in range(12)]
    (directory / "tiny-imagenet-200/val/val_annotations.txt").write_text("".join(rows))
    declare_operators()
    from torchvision.models import resnet18

    torch.save(resnet18().state_dict(), directory / "resnet18-f37072fd.pth")


def small(command):
    """Return the command with options that shorten it to seconds, once for each host that runs it."""
    words = shlex.split(command, comments=True)
    text = shlex.join(words)
    for long, short in CHANGED.items():
        text = text.replace(long, short)
    spec = next((name for name in SHRUNK if f" {name}" in text), "")
    if re.search(r"superdl(\.main)? (run|compare --warmup-epochs 0) [a-z]", text):
        samples = "" if " digits" in text else " data.samples=240"
        sets = f"{TINY}{samples} {SHRUNK.get(spec, '')}".split()
        text += "".join(f" --set {shlex.quote(value)}" for value in sets)
        text += " --repeats 1" * ("superdl compare" in text)
    if "HOST" not in text:
        return [text]
    named = re.findall(r"--(?:data|training)-hosts (\S+)", text)
    return [text.replace("HOST", host) for host in ",".join(named).split(",")]


def script_of(page):
    """Return a shell script that runs all commands of a page, each on all of its hosts at once."""
    lines = ["set -e", "ip link set lo up"]
    lines += [f"ip addr add {address}/32 dev lo" for address in ADDRESSES.values()]
    lines += ['mount --bind "$NAMES" /etc/hosts']
    for command in commands_of(page):
        lines += [f"echo {shlex.quote(f'+ {command}')}", "pids="]
        lines += [f'{line} & pids="$pids $!"' for line in small(command)]
        lines += ["for pid in $pids; do wait $pid; done"]
    return "\n".join(lines)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_every_command_of_a_page_runs(path, names, tmp_path):
    if "=/data/" in path.read_text(encoding="utf-8"):
        published_sets(tmp_path / "published")
    temporary = tempfile.mkdtemp(prefix="s", dir="/tmp")  # short: socket paths have 107 bytes
    search = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    own = {name: value for name, value in os.environ.items() if not name.startswith("SUPER_")} | {
        "SUPER_STORE": "none",
        "SUPER_STATE": "none",
        "SUPER_INSECURE": "1",
        "NAMES": str(names),
        "GLOO_SOCKET_IFNAME": "lo",
        "SM_NUM_GPUS": "1",
        "PYTHONPATH": search,
        "TMPDIR": temporary,
        "OMP_NUM_THREADS": "1",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    }
    log = tmp_path / "log"
    try:
        with log.open("wb") as out:
            ran = subprocess.run(
                [*NAMESPACE, "bash", "-c", script_of(path)], env=own, cwd=tmp_path, stdout=out, stderr=out,
                stdin=subprocess.DEVNULL, check=False,
            )  # fmt: skip
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    assert ran.returncode == 0, log.read_text(errors="replace")[-6000:]
