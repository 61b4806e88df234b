"""``superdl index``: find samples in shards, or images with label files beside them."""

from __future__ import annotations

from superdl.index.building import Built, build_index
from superdl.index.choices import Choices, fields_in
from superdl.index.shard import Member, ShardError

__all__ = ["Built", "Choices", "Member", "ShardError", "build_index", "fields_in"]
