"""Finds the samples that lie in shards, or have label files beside them: ``superdl index``.

``shard`` reads pieces of a file or an object, a module for each family of formats finds the members.
``building`` goes over all shards in parallel, ``writing`` writes the key list, ``command`` asks and prints.
"""

from __future__ import annotations

from superdl.index.building import Built, build_index
from superdl.index.choices import Choices, fields_in
from superdl.index.shard import Member, ShardError, ShardFormatError

__all__ = ["Built", "Choices", "Member", "ShardError", "ShardFormatError", "build_index", "fields_in"]
