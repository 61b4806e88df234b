"""The examples for other modalities train a small model on real files, with the embedded default."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# example -> the packages that it needs
EXAMPLES = {
    "audio": ("soundfile", "soxr"),
    "detection": ("torchvision",),
    "masks": (),
    "pairs": (),
    "text": ("tokenizers",),
    "video": ("av",),
}
QUICK = ("masks",)
# Beside a torch without CUDA, torchvision lacks operators of its own.
RUN = (
    "import runpy, sys; from superdl.experiments.models import declare_operators; declare_operators(); "
    "runpy.run_path(sys.argv[1], run_name='__main__')"
)


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in EXAMPLES],
)
def test_the_loss_goes_down(name, tmp_path):
    for package in EXAMPLES[name]:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SUPER_")}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), environment.get("PYTHONPATH", "")]))
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(ROOT / "examples" / f"{name}.py")],
        capture_output=True,
        text=True,
        env=environment | {"SUPER_STORE": "none", "SUPER_STATE": "none"},
        cwd=tmp_path,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    losses = [float(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("loss ")]
    assert len(losses) >= 10
    assert sum(losses[-3:]) < 0.6 * sum(losses[:3]), losses
