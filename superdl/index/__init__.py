"""Finds the samples that lie in shards: what ``superdl index`` does.

``shard`` reads pieces of a file or an object. A module for each family of formats says which members a shard
has. ``building`` goes over all shards in parallel, ``writing`` writes the key list, ``command`` asks and
prints.
"""

from __future__ import annotations

from superdl.index.building import Built, build_index
from superdl.index.fields import fields_in
from superdl.index.shard import Choices, Member, ShardError, ShardFormatError

__all__ = ["Built", "Choices", "Member", "ShardError", "ShardFormatError", "build_index", "fields_in"]
