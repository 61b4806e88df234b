"""The sampler: which batches come next, and the embedded default that makes them come.

``SuperSampler`` asks a coordinator for its rank's plan and yields :class:`superdl.super_wire.BatchRef`;
without a coordinator it starts one. Reading the batches is :mod:`superdl.super_dataset`'s. The names are
looked up on first use, so that the supervisor process, which lives in this package too, does not pay for
torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from superdl.sampler.plan_iterator import PlanIterator
    from superdl.sampler.sampler import SuperSampler
    from superdl.sampler.stats import SamplerStats

__all__ = ["PlanIterator", "SamplerStats", "SuperSampler"]


def __getattr__(name: str) -> object:
    if name == "SuperSampler":
        from superdl.sampler.sampler import SuperSampler

        return SuperSampler
    if name == "PlanIterator":
        from superdl.sampler.plan_iterator import PlanIterator

        return PlanIterator
    if name == "SamplerStats":
        from superdl.sampler.stats import SamplerStats

        return SamplerStats
    raise AttributeError(f"module 'sampler' has no attribute {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
