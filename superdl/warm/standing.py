"""Asks a coordinator about a dataset and its cache without opening a job: nothing is produced for it."""

from __future__ import annotations

import logging
import time
from dataclasses import fields
from typing import TYPE_CHECKING

from superdl.coordinator.core import Prices
from superdl.sampler.rpc.client import FIRST_CONTACT, Client
from superdl.super_wire.errors import ProtocolMismatchError, SourceError
from superdl.super_wire.protocol import PROTOCOL_VERSION
from superdl.warm.estimate import Standing

if TYPE_CHECKING:
    from collections.abc import Callable

    from superdl.super_dataset import SuperDataset

__all__ = ["standing_of"]

_LOG = logging.getLogger(__name__)

_LOOKAHEAD_LEAST = 4  # two batches beyond those given out are looked at in any case
_POLL_S = 10.0
_SILENCE_S = 120.0


def standing_of(address: str, dataset: SuperDataset, *, run: str, listed: Callable[[int], None]) -> Standing:
    """Register the dataset, wait until it is listed, and ask what the cache has and executors cost.

    Args:
        address: the coordinator's, checked.
        dataset: what is to be warmed.
        run: the run that shares the listing.
        listed: told how many samples were found so far.

    Raises:
        SourceError: the source cannot be listed, or its listing stands still.
        CoordinatorError: the coordinator does not answer, or refuses.
    """
    from superdl.super_wire import coordinator_pb2 as pb

    client = Client(address)
    with client.hold():
        request = pb.RegisterDatasetRequest(
            protocol_version=PROTOCOL_VERSION,
            source=dataset.source,
            recipe=dataset.recipe.json,
            key_list=dataset.key_list or "",
            run_id=run,
        )
        facts = client.call("RegisterDataset", request, FIRST_CONTACT)
        if facts.protocol_version != PROTOCOL_VERSION:
            raise ProtocolMismatchError(
                f"superdl warm speaks protocol version {PROTOCOL_VERSION}, the coordinator at {address} "
                f"speaks {facts.protocol_version}: install one version of SUPER on both sides"
            )
        moved_s = time.monotonic()
        while not facts.ready:
            if time.monotonic() - moved_s > _SILENCE_S:
                raise SourceError(
                    f"the listing of {dataset.source} stands at {facts.listed} samples and has not moved for "
                    f"{_SILENCE_S:.0f} s: see the log of the coordinator at {address}"
                )
            seen = facts.listed
            poll = pb.GetDatasetRequest(dataset_id=facts.dataset_id, listed=seen, wait_s=_POLL_S)
            facts = client.call("GetDataset", poll, FIRST_CONTACT, wait_s=_POLL_S)
            if facts.listed > seen:
                moved_s = time.monotonic()
                listed(facts.listed)
        for warning in facts.warnings:
            _LOG.warning("%s", warning)
        told = client.call("GetJobStats", pb.GetJobStatsRequest(), FIRST_CONTACT)
    # A coordinator tells what a unit costs, not what is a part of it.
    units = [entry.name for entry in fields(Prices) if entry.name != "coordinator_hour"]
    return Standing(
        samples=facts.size,
        budget_bytes=told.cache.budget_bytes,
        free_bytes=told.cache.free_bytes,
        resident_samples=told.cache.resident_samples,
        resident_bytes=told.cache.resident_bytes,
        prices={one.name: Prices(**{unit: getattr(one, unit) for unit in units}) for one in told.prices},
        lookahead_batches=max(_LOOKAHEAD_LEAST, told.coordinating.lookahead_batches),
        cache=told.coordinating.cache,
        fingerprint=facts.fingerprint,
    )
