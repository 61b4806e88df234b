"""``superdl bench gpu``: figures from given measurements, and what it says where there is no GPU."""

from __future__ import annotations

import pytest
import torch

from benchmarks.contenders import SUPER_LOADER
from benchmarks.gpu import GpuRun, rows_of
from benchmarks.gpu_trainer import SYNTHETIC, GpuResult
from superdl.main import main

RESULT = GpuResult(
    images=4000,
    steps=20,
    wall_s=2.0,
    busy_s=1.5,
    waiting_s=0.5,
    first_epoch_s=4.0,
    supply_s=0.5,
    copy_ms=3.0,
    trainer_cpu_s=0.4,
    nvml_percent=None,
)


def test_rows_compare_with_what_the_device_can_do():
    bound = GpuResult(**{name: getattr(RESULT, name) for name in RESULT.__slots__} | {"wall_s": 1.0})
    synthetic, loaded = rows_of(
        [
            GpuRun(SYNTHETIC, "resnet18", 0, 2, bound),
            GpuRun(SUPER_LOADER, "resnet18", 0, 2, RESULT),
        ]
    )
    assert (synthetic["loader"], synthetic["percent_of_synthetic"]) == ("synthetic", 100)
    assert synthetic["supply_images_per_s"] is None
    assert loaded["loader"] == "SuperLoader"
    assert loaded["images_per_s"] == 2000
    assert loaded["percent_of_synthetic"] == 50
    assert loaded["busy_percent"] == 75
    assert loaded["waiting_ms_per_step"] == 25
    assert loaded["supply_images_per_s"] == 4000
    assert loaded["first_epoch_images_per_s"] == 500
    assert loaded["trainer_cpu_ms_per_image"] == pytest.approx(0.1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(capsys, tmp_path):
    assert main(["bench", "gpu", "--data", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert "no CUDA device" in said
    assert "--device cpu" in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("device", ["toaster", "meta"])
def test_a_device_that_is_none_is_named(device, capsys):
    assert main(["bench", "gpu", "--device", device]) == 1
    assert repr(device) in capsys.readouterr().err
