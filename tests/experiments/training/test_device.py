"""The device, the types it computes in, its random states, and the time that it takes."""

from __future__ import annotations

import pytest
import torch

from superdl.experiments.models import build_model
from superdl.experiments.training.device import (
    autocast,
    compute_type,
    make_strategy,
    pick_device,
    random_states,
    restore_random_states,
)
from superdl.experiments.training.ranks import ProcessRank, Ranks
from superdl.super_wire.errors import ConfigError

CPU = torch.device("cpu")
CUDA = torch.device("cuda")


def test_what_is_named_is_what_it_is(monkeypatch):
    assert compute_type("float32", CPU) == torch.float32
    assert compute_type("bfloat16", CPU) == torch.bfloat16
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Tesla T4")
    for capability, dtype in (((9, 0), torch.bfloat16), ((7, 5), torch.float16), ((6, 1), torch.float32)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, it=capability: it)
        assert compute_type("auto", CUDA) == dtype
    with pytest.raises(ConfigError, match="Tesla T4 only emulates bfloat16, slower than float32"):
        compute_type("bfloat16", CUDA)


@pytest.mark.parametrize("computes", [True, False])
def test_on_a_cpu_its_instructions_decide(monkeypatch, computes):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: computes, raising=False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False, raising=False)
    assert compute_type("auto", CPU) == (torch.bfloat16 if computes else torch.float32)


def test_a_strategy_computes_in_its_type_and_keeps_weights_in_float32():
    model = build_model("small_cnn", 3, CPU)
    images = torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8)
    for dtype in (torch.float32, torch.bfloat16):
        strategy = make_strategy("single", model, CPU, dtype)
        with strategy.computing():
            assert strategy.model(images).dtype == dtype
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    with autocast(CPU, torch.float32):
        assert model(images).dtype == torch.float32


def test_each_rank_has_the_gpu_of_its_number(monkeypatch):
    taken = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    assert pick_device("auto", ProcessRank(3, 4, 1)) == torch.device("cuda", 1)
    assert taken == [torch.device("cuda", 1)]
    assert pick_device("cpu", ProcessRank(3, 4, 1)) == torch.device("cpu")
    assert pick_device("cuda", ProcessRank()) == torch.device("cuda")
    with pytest.raises(ConfigError, match=r"rank 2 is number 2 of its host, which has 2 GPU\(s\)"):
        pick_device("auto", ProcessRank(2, 3, 2))


def test_a_device_that_is_not_there_is_named():
    assert pick_device("cpu") == CPU
    if torch.cuda.is_available():
        assert pick_device("auto").type == pick_device("cuda").type == "cuda"
    else:
        assert pick_device("auto") == CPU
        with pytest.raises(ConfigError, match="no CUDA device"):
            pick_device("cuda")


@pytest.mark.parametrize("damage", [{}, {"python": None}, {"numpy": ["MT19937"]}, {"cpu": [torch.zeros(3)]}])
def test_random_states_that_are_damaged_are_told_as_such(damage):
    alone, device = Ranks(ProcessRank()), CPU
    whole = random_states(device, alone)
    assert restore_random_states(whole, device, alone)
    with pytest.raises(ConfigError, match="the checkpoint's random states are damaged"):
        restore_random_states(whole | damage if damage else damage, device, alone)
    assert restore_random_states(whole, device, alone)
