"""Reads how busy one GPU is and how much of its memory is used, through NVML.

The package `nvidia-ml-py` (module `pynvml`) is optional and imported only when a meter is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

__all__ = ["GpuMeter", "GpuReading", "meter_of"]


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One look at a GPU, all of its processes together; None is what it does not tell (a slice by MIG).

    ``busy_percent`` is the share of the driver's last sample period (a sixth of a second to a second) in
    which some kernel ran: 100 means never idle, not fully used.
    """

    busy_percent: float | None
    memory_bytes: int | None
    memory_total_bytes: int | None


def meter_of(device: torch.device) -> GpuMeter | None:
    """The meter of the GPU that is ``device``; None for a device that is no GPU.

    Raises:
        ConfigError: there is a GPU, but it cannot be read; the message says why.

    """
    if device.type != "cuda":
        return None
    import torch  # in a run it is there; a reader of reports needs none

    return GpuMeter(str(torch.cuda.get_device_properties(device).uuid))


class GpuMeter:
    """One GPU by its UUID, which is right whatever CUDA_VISIBLE_DEVICES hides or reorders."""

    def __init__(self, uuid: str) -> None:
        """Find the GPU.

        Raises:
            ConfigError: the package is not installed, or the driver does not know such a GPU.

        """
        try:
            import pynvml  # needs the optional package
        except ImportError as error:
            raise ConfigError(
                f"no GPU utilisation: the package nvidia-ml-py cannot be imported ({error}); "
                "pip install 'superdl[train]'",
            ) from error
        self._nvml: Any = pynvml
        name = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise ConfigError(f"no GPU utilisation: NVML does not start ({error}); see nvidia-smi") from error
        try:
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(name)
        except pynvml.NVMLError as error:
            pynvml.nvmlShutdown()
            raise ConfigError(
                f"no GPU utilisation: NVML gives no access to {name} ({error}); see nvidia-smi -L"
            ) from error

    def read(self) -> GpuReading:
        """Look now; takes well below a millisecond."""
        memory = self._ask(self._nvml.nvmlDeviceGetMemoryInfo)
        rates = self._ask(self._nvml.nvmlDeviceGetUtilizationRates)
        return GpuReading(
            busy_percent=None if rates is None else float(rates.gpu),
            memory_bytes=None if memory is None else int(memory.used),
            memory_total_bytes=None if memory is None else int(memory.total),
        )

    def close(self) -> None:
        """Let go of NVML."""
        self._nvml.nvmlShutdown()

    def _ask(self, question: Callable[[Any], Any]) -> Any:
        """What NVML answers; None where this GPU, or its driver, has no answer now."""
        try:
            return question(self._handle)
        except self._nvml.NVMLError:
            return None
