"""A dataset that records what a sampler passes to it."""

from __future__ import annotations

from dataclasses import dataclass, field

from superdl.super_wire.ids import Naming
from superdl.super_wire.recipe import Recipe


@dataclass
class BoundDataset:
    """Implements :class:`superdl.super_wire.batch_ref.Bindable`."""

    source: str = "file:///images"
    recipe: Recipe = field(default_factory=lambda: Recipe.image(resize=32, crop=32))
    key_list: str | None = None
    naming: Naming = field(default_factory=Naming)
    given_classes: tuple[str, ...] = ()
    reads_straight: bool = True
    coordinator: str | None = None
    bindings: list = field(default_factory=list)
    warned: set = field(default_factory=set)
    pinged: list = field(default_factory=list)

    def bind(self, binding):
        self.bindings.append(binding)

    bad_samples = ()

    def name_bad_samples(self):
        pass

    def ping_cache(self, cache):
        self.pinged.append(cache)

    def __getitem__(self, batch):
        return batch.epoch, batch.position, batch.sample_ids
