"""The sampler, which yields planned batches, and the embedded coordinator."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from superdl.sampler.parts import PlanIterator
    from superdl.sampler.registration import describe, list_labels, list_samples
    from superdl.sampler.sampler import SuperSampler
    from superdl.sampler.stats import SamplerStats

__all__ = ["PlanIterator", "SamplerStats", "SuperSampler", "describe", "list_labels", "list_samples"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'superdl.sampler' has no attribute {name!r}")
    # On first use, so that modules that do not need torch do not import it.
    from superdl.sampler import parts, registration, sampler, stats

    homes = {"PlanIterator": parts, "SamplerStats": stats, "SuperSampler": sampler}
    return getattr(homes.get(name, registration), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
