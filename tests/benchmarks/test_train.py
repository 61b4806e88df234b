"""``superdl bench train``: its figures, its network, its order, and that it refuses what it cannot do."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch

from benchmarks.contenders import PILLOW, SUPER
from benchmarks.planned_order import PlannedOrder
from benchmarks.resnet import RESNETS, small_resnet
from benchmarks.train import loss_difference
from benchmarks.train_figures import Alone, TrainRun, rows_of
from benchmarks.trainer import EpochResult, TrainResult
from superdl.coordinator.core.plan import Plan
from superdl.main import main

EPOCH = EpochResult(
    steps=10,
    images=1000,
    wall_s=4.0,
    wait_s=1.0,
    functions_cpu_s=0.0,
    services_cpu_s=0.0,
    produced=0,
    losses=[2.0, 1.0],
)


def trained(*epochs: EpochResult, decode: float | None = None, compute: float | None = None) -> TrainResult:
    return TrainResult(list(epochs), 7, decode, compute)


def test_rows_tell_step_time_waiting_and_gain_with_what_bounds_it():
    runs = [
        TrainRun(1, PILLOW, trained(replace(EPOCH, wall_s=9.0), EPOCH, decode=3.0, compute=1.0)),
        TrainRun(
            1,
            SUPER,
            trained(
                replace(EPOCH, wall_s=2.0, functions_cpu_s=1.8, services_cpu_s=0.2, produced=1000),
                replace(EPOCH, wall_s=1.0, wait_s=0.1),
                replace(EPOCH, wall_s=1.2, wait_s=0.1),
            ),
        ),
    ]
    plain, cold, warm = rows_of(runs, Alone.of(runs), workers=2, other_cores=1)
    assert (plain["loader"], plain["epochs"], plain["gain"]) == ("DataLoader + Pillow", "later", 1)
    assert plain["step_ms"] == pytest.approx(400)
    assert plain["wait_percent"] == pytest.approx(25)
    assert (cold["epochs"], warm["epochs"]) == ("cold", "warm")
    assert cold["gain"] == pytest.approx(2)
    assert cold["functions_cpu_ms_per_image"] == pytest.approx(1.8)
    assert cold["gain_bound"] == pytest.approx(4 / 2)  # functions and services need 2 ms for an image
    assert warm["gain"] == pytest.approx(4 / 1.1)
    assert warm["gain_bound"] == pytest.approx(4 / 1)  # computing takes 1 ms
    assert warm["wait_percent"] == pytest.approx(100 * (0.1 + 0.1 / 1.2) / 2)


def test_more_cores_for_functions_raise_the_bound():
    alone = Alone(decode_ms_per_image=3.0, compute_ms_per_image=1.0)
    assert alone.decode_to_compute == 3
    assert [alone.gain_bound(4.2, 3.0 / cores) for cores in (1, 2, 4)] == pytest.approx([1.4, 2.8, 4.2])


def test_losses_are_compared_step_by_step():
    same = TrainRun(1, PILLOW, trained(EPOCH, EPOCH))
    other = TrainRun(1, SUPER, trained(EPOCH, replace(EPOCH, losses=[2.0, 1.25])))
    assert loss_difference([same, same]) == 0
    assert loss_difference([same, other]) == 0.25


def test_the_order_is_the_plans_epoch_by_epoch():
    order = PlannedOrder(10, 4, seed=3)
    plan = Plan(size=10, batch_size=4, seed=3)
    assert len(order) == 3
    iter(order)  # an iterator that nobody uses, as DataLoader makes, begins no epoch
    for epoch in range(2):
        assert list(order) == [plan.batch(epoch, position, 0).indices.tolist() for position in range(3)]


@pytest.mark.parametrize(("name", "parameters"), [("resnet18", 11_689_512), ("resnet50", 25_557_032)])
def test_the_networks_have_the_size_of_the_papers(name, parameters):
    with torch.device("meta"):
        model = RESNETS[name](1000)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


def test_a_network_takes_images_as_loaders_give_them():
    images = torch.zeros((2, 64, 64, 3), dtype=torch.uint8).permute(0, 3, 1, 2)
    assert small_resnet(10, width=4)(images).shape == (2, 10)
    assert not images.any()


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="holds processes to cores")
def test_one_core_is_too_few(capsys, tmp_path):
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert main(["bench", "train", "--data", str(tmp_path)]) == 1
    finally:
        os.sched_setaffinity(0, before)
    assert "it needs 2 at least" in capsys.readouterr().err
