"""How a model is spread over ranks: alone, by DistributedDataParallel, or by FSDP2's ``fully_shard``.

The loop is the same for all. State dicts are whole ones, by the model's own parameter names, so that what one
strategy saved another loads. Who the ranks are is left to `experiments.training.ranks`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.nn.parallel import DistributedDataParallel

from superdl.experiments.models import NormalisedNetwork
from superdl.experiments.training.device import autocast
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from superdl.experiments.training.ranks import ProcessRank

__all__ = ["Strategy", "load_state", "make_strategy", "strategy_name", "whole_state"]

_SAVE = StateDictOptions(full_state_dict=True, cpu_offload=True)
_LOAD = StateDictOptions(full_state_dict=True)


def strategy_name(name: str, process: ProcessRank) -> str:
    """Return the strategy that ``training.strategy`` names for so many ranks.

    Raises:
        ConfigError: there are several ranks, and it is ``single``.

    """
    if name == "auto":
        return "ddp" if process.replicas > 1 else "single"
    if name == "single" and process.replicas > 1:
        raise ConfigError(
            f"training.strategy is single, but there are {process.replicas} ranks (WORLD_SIZE), which would "
            "train models of their own; set training.strategy to ddp, fsdp or auto"
        )
    return name


def make_strategy(name: str, model: nn.Module, device: torch.device, dtype: torch.dtype) -> Strategy:
    """Spread ``model``, which has the same weights on each rank, over the ranks of the process group."""
    if name == "fsdp":
        return _Sharded(model, device, dtype)
    if name == "ddp" and dist.is_initialized():
        return _Replicated(model, device, dtype)
    return Strategy(model, device, dtype)


class Strategy:
    """A model as the loop uses it; this one is of a process that has it alone."""

    def __init__(self, model: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
        """Have ``model`` compute on ``device`` in ``dtype``."""
        self.model = model
        """What is called in training."""
        self.evaluated = model
        """What is called in validation: the same weights."""
        self._device = device
        self._dtype = dtype

    def computing(self) -> AbstractContextManager[object]:
        """What forward passes are done in."""
        return autocast(self._device, self._dtype)

    def settle(self) -> None:
        """Have what is not a parameter, such as the means of batch norm, the same on all ranks."""


class _Replicated(Strategy):
    """Each rank has the model, and gradients are averaged."""

    def __init__(self, model: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(model, device, dtype)
        # Validation calls the model itself: the wrapper would send buffers, also where ranks differ in calls.
        self.model = DistributedDataParallel(
            model, device_ids=[device] if device.type == "cuda" else None, gradient_as_bucket_view=True
        )

    def settle(self) -> None:
        _send_buffers(self.evaluated)


class _Sharded(Strategy):
    """Each rank has a part of every parameter, and gathers a block's while it computes it.

    In bfloat16 the gathered parameters are of that type, and gradients are reduced in float32; a model with
    batch norm, whose running means are float32, gathers float32 and computes under autocast.
    """

    def __init__(self, model: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        network = model.network if isinstance(model, NormalisedNetwork) else model
        in_type = dtype if dtype != torch.float32 and not _has_batch_norm(network) else None
        gathered = dict[str, Any](
            param_dtype=in_type, reduce_dtype=None if in_type is None else torch.float32
        )
        model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]  # FSDP cuts contiguous ones
        for block in _blocks(network):
            fully_shard(block, mesh=mesh, mp_policy=MixedPrecisionPolicy(**gathered))
        output = None if in_type is None else torch.float32
        fully_shard(network, mesh=mesh, mp_policy=MixedPrecisionPolicy(**gathered, output_dtype=output))
        super().__init__(model, device, dtype if in_type is None else torch.float32)

    def settle(self) -> None:
        _send_buffers(self.model)


def _has_batch_norm(model: nn.Module) -> bool:
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())  # noqa: SLF001  # the base of all


def _blocks(model: nn.Module) -> list[nn.Module]:
    """The parts that repeat: what lies in the model's sequences and has parameters, none within another."""
    found: list[nn.Module] = []
    inside: set[nn.Module] = set()
    for module in model.modules():
        if module in inside or not isinstance(module, nn.Sequential):
            continue
        for part in module.children():
            if any(True for _ in part.parameters()) and any(True for _ in part.children()):
                found.append(part)
                inside.update(part.modules())
    return found


def _send_buffers(model: nn.Module) -> None:
    for buffer in model.buffers():
        dist.broadcast(buffer, src=0)


def whole_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[dict[str, Any], dict[str, Any]]:
    """The whole state of model and optimiser, on the CPU: on rank 0; all ranks take part."""
    return (
        get_model_state_dict(model, options=_SAVE),
        dict(get_optimizer_state_dict(model, optimizer, options=_SAVE)),
    )


def load_state(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    model_state: dict[str, Any],
    optimizer_state: dict[str, Any],
) -> None:
    """Load what `whole_state` gave, on each rank the whole of it."""
    set_model_state_dict(model, model_state, options=_LOAD)
    set_optimizer_state_dict(model, optimizer, optimizer_state, options=_LOAD)
