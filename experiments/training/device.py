"""Device, precision and seeds of a run, and the strategies that distribute a model over ranks."""

from __future__ import annotations

import random
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions
from torch.nn.parallel import DistributedDataParallel

from superdl.experiments.models import NormalisedNetwork
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from superdl.experiments.training.ranks import ProcessRank

_CUDA_WITH_FP16 = (7, 0)  # V100 and T4 have tensor cores for float16 but not for bfloat16
_CPU_INSTRUCTIONS = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")


def pick_device(name: str, process: ProcessRank | None = None) -> torch.device:
    """Return the device that a spec selects. ``auto`` selects CUDA if it is available.

    Raises:
        ConfigError: CUDA is selected but not available, or a host has more ranks than GPUs.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device is cuda, but torch finds no CUDA device. Set device to auto or cpu.")
    if name == "cpu" or process is None or process.replicas == 1:
        return torch.device(name)
    if process.local_rank >= torch.cuda.device_count():
        raise ConfigError(
            f"rank {process.rank} has local rank {process.local_rank}, but its host has "
            f"{torch.cuda.device_count()} GPU(s). Start one rank per GPU (torchrun --nproc-per-node), or set "
            "device=cpu."
        )
    # Each rank uses the GPU whose number is its local rank.
    device = torch.device("cuda", process.local_rank)
    torch.cuda.set_device(device)
    return device


def compute_type(name: str, device: torch.device) -> torch.dtype:
    """Return the data type that ``training.precision`` selects for ``device``.

    ``auto`` is bfloat16 where it is native, else float16 on GPUs that compute in it, else float32.

    Raises:
        ConfigError: bfloat16 is requested on a GPU that only emulates it.
    """
    on_gpu = device.type == "cuda"
    if on_gpu:
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    else:  # AVX512-BF16 or AMX
        checks: list[Any] = [getattr(torch.cpu, check, None) for check in _CPU_INSTRUCTIONS]
        native = any(check is not None and check() for check in checks)
    if name == "bfloat16" and on_gpu and not native:
        raise ConfigError(
            f"{torch.cuda.get_device_name(device)} only emulates bfloat16, more slowly than it computes "
            "float32. Set training.precision=auto."
        )
    if name != "auto":
        return {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}[name]
    if native:
        return torch.bfloat16
    has_float16 = on_gpu and torch.cuda.get_device_capability(device) >= _CUDA_WITH_FP16
    return torch.float16 if has_float16 else torch.float32


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch, and make cuDNN choose the same kernels each time."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002  # for user code that draws from the global generator
    torch.manual_seed(seed)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False


def synchronise(device: torch.device) -> None:
    """Wait until the device has finished all queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class ComputeSpan:
    """Measure a block's duration, using events on CUDA, where work is queued, and the clock elsewhere.

    On CUDA, read `seconds` only after `synchronise`.
    """

    def __init__(self, device: torch.device) -> None:
        self._events: list[torch.cuda.Event] = []
        if device.type == "cuda":
            self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._start_s = self._stop_s = 0.0

    def __enter__(self) -> Self:
        if self._events:
            self._events[0].record()
        self._start_s = time.perf_counter()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop_s = time.perf_counter()
        if self._events:
            self._events[1].record()

    def wait(self) -> None:
        """Wait until the device has finished the block's work."""
        if self._events:
            self._events[1].synchronize()

    @property
    def host_s(self) -> float:
        """Seconds that the host spent in the block."""
        return self._stop_s - self._start_s

    @property
    def seconds(self) -> float:
        """Seconds that the block's work took on the device."""
        if self._events:
            return float(self._events[0].elapsed_time(self._events[1])) / 1000.0  # milliseconds
        return self.host_s


# ------------------------------------------------------------------------------------------ strategies

# Whole states with the model's own parameter names: any strategy can load what another has saved. Each rank
# loads the whole state and keeps its part; rank 0 saves it from the CPU.
LOAD_WHOLE = StateDictOptions(full_state_dict=True)
SAVE_WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


def strategy_name(name: str, process: ProcessRank) -> str:
    """Return the strategy that ``training.strategy`` selects for this number of ranks."""
    if name == "auto":
        return "ddp" if process.replicas > 1 else "single"
    if name == "single" and process.replicas > 1:
        raise ConfigError(
            f"training.strategy is single, but {process.replicas} ranks (WORLD_SIZE) would train separate "
            "models. Set training.strategy to ddp, fsdp or auto."
        )
    return name


@dataclass(frozen=True, slots=True)
class Strategy:
    """A distributed ``model`` to train, and ``evaluated``, a model with the same weights to validate."""

    model: nn.Module
    evaluated: nn.Module
    device: torch.device
    dtype: torch.dtype  # of forward passes, where that is safe
    scales: bool  # gradients are in float16, which needs scaled losses

    def computing(self) -> AbstractContextManager[object]:
        """Return the context manager for forward passes."""
        if self.dtype == torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.dtype)

    def settle(self) -> None:
        """Copy buffers, such as batch norm's running means, from rank 0 to all ranks."""
        if dist.is_initialized():
            for buffer in self.evaluated.buffers():
                dist.broadcast(buffer, src=0)


def make_strategy(name: str, model: nn.Module, device: torch.device, dtype: torch.dtype) -> Strategy:
    """Distribute ``model``, which must be identical on all ranks, over the process group."""
    scales = dtype == torch.float16
    if name == "fsdp":
        return Strategy(model, model, device, _shard(model, device, dtype), scales)
    if name == "ddp" and dist.is_initialized():
        devices = [device] if device.type == "cuda" else None
        replicated = DistributedDataParallel(model, device_ids=devices, gradient_as_bucket_view=True)
        # Validate the model itself: the wrapper broadcasts buffers, but ranks may differ in calls.
        return Strategy(replicated, model, device, dtype, scales)
    return Strategy(model, model, device, dtype, scales)


def _shard(model: nn.Module, device: torch.device, dtype: torch.dtype) -> torch.dtype:
    """Shard the model with FSDP, and return the autocast type."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    # The wrapper only normalises images, so shard the network inside.
    network = model.network if isinstance(model, NormalisedNetwork) else model
    norms = (module for module in network.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm))  # noqa: SLF001  # no public base class
    # Running means of batch norm are float32, so such a model computes under autocast instead.
    in_type = None if dtype == torch.float32 or any(True for _ in norms) else dtype
    # Half-precision gradients are reduced in float32.
    wide = None if in_type is None else torch.float32
    model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]  # FSDP needs this to shard
    # FSDP gathers a block's parameters while the block computes.
    for block in _blocks(network):
        fully_shard(block, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=in_type, reduce_dtype=wide))
    policy = MixedPrecisionPolicy(param_dtype=in_type, reduce_dtype=wide, output_dtype=wide)
    fully_shard(network, mesh=mesh, mp_policy=policy)
    return dtype if in_type is None else torch.float32


def _blocks(model: nn.Module) -> list[nn.Module]:
    """Return those children of outermost `nn.Sequential` modules that have parameters and children."""
    blocks: list[nn.Module] = []
    inside: set[nn.Module] = set()
    for module in model.modules():
        if module in inside or not isinstance(module, nn.Sequential):
            continue
        for part in module.children():
            if any(True for _ in part.parameters()) and any(True for _ in part.children()):
                blocks.append(part)
                inside.update(part.modules())
    return blocks
