"""Makes prefetch requests whose id tells a misbehaving function of the tests what to do."""

from __future__ import annotations

import time

from superdl.super_wire.ids import sample_ids, split_ids
from superdl.super_wire.recipe import Recipe
from superdl.super_wire.request import PrefetchRequest

TIMEOUT_S = 30.0


def ask(request_id="plain", bucket="file:///nowhere", keys=("k",), versions=("1-1",), cache="unix:///none"):
    recipe = Recipe([])
    ids = split_ids(
        sample_ids(bucket, [k.encode() for k in keys], [v.encode() for v in versions], recipe.digest)
    )
    return PrefetchRequest(
        request_id=request_id,
        bucket=bucket,
        recipe=recipe.json,
        epoch=0,
        cache=cache,
        expires_at=time.time() + TIMEOUT_S,
        keys=tuple(keys),
        versions=tuple(versions),
        ids=tuple(one.hex() for one in ids),
    )
