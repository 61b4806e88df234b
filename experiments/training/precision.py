"""Which floating point numbers a model computes in: float32, or bfloat16 where it helps.

Weights and the optimiser stay in float32. Applying it is left to `experiments.training.strategies`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from superdl.super_wire.errors import ConfigError

__all__ = ["autocast", "compute_type"]

_CUDA_WITH_BF16 = (8, 0)
_CPU_INSTRUCTIONS = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")


def compute_type(name: str, device: torch.device) -> torch.dtype:
    """Return the type that ``training.precision`` names for ``device``.

    ``auto`` is bfloat16 where the device computes in it: GPUs of compute capability 8.0 or more, CPUs with
    AVX512-BF16 or AMX; docs/training.md has what it was worth.

    Raises:
        ConfigError: bfloat16 is asked for on a GPU that only emulates it.

    """
    if name == "float32":
        return torch.float32
    if name == "bfloat16":
        if device.type == "cuda" and not _computes_in_bf16(device):
            raise ConfigError(
                f"{torch.cuda.get_device_name(device)} only emulates bfloat16, slower than float32; set "
                "training.precision=auto"
            )
        return torch.bfloat16
    return torch.bfloat16 if _computes_in_bf16(device) else torch.float32


def autocast(device: torch.device, dtype: torch.dtype) -> AbstractContextManager[object]:
    """Return what makes the operations within compute in ``dtype`` where that is safe."""
    if dtype == torch.float32:
        return nullcontext()
    return torch.autocast(device.type, dtype=dtype)


def _computes_in_bf16(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= _CUDA_WITH_BF16
    checks: list[Any] = [getattr(torch.cpu, name, None) for name in _CPU_INSTRUCTIONS]
    return any(check is not None and check() for check in checks)
