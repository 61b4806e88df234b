"""The read path: from a ``BatchRef`` to one checked batch buffer, by packs and cache; what is delivered."""

from __future__ import annotations

from superdl.super_dataset.reading.checks import Verify
from superdl.super_dataset.reading.delivery import (
    BadSampleLog,
    BatchInfo,
    OnBadSample,
    Padding,
    batch_info,
    check_label_dtype,
    check_policies,
    delivered_order,
    label_tensor,
    sample_tensors,
)
from superdl.super_dataset.reading.reader import Backoff, BatchReader, ReadSettings

__all__ = [
    "Backoff",
    "BadSampleLog",
    "BatchInfo",
    "BatchReader",
    "OnBadSample",
    "Padding",
    "ReadSettings",
    "Verify",
    "batch_info",
    "check_label_dtype",
    "check_policies",
    "delivered_order",
    "label_tensor",
    "sample_tensors",
]
