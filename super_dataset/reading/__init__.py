"""The read path: from a ``BatchRef`` through packs and cache to a checked batch buffer, and its delivery."""

from __future__ import annotations

from superdl.super_dataset.reading.bad_samples import LEAVES_OUT, BadSample, BadSamples, BatchLeftOut
from superdl.super_dataset.reading.batch import Batch, bad_sample_error
from superdl.super_dataset.reading.checks import Verify
from superdl.super_dataset.reading.delivery import (
    BatchInfo,
    LastGood,
    OnBadSample,
    Padding,
    SampleTensors,
    batch_info,
    check_label_dtype,
    check_policies,
    delivered_order,
    label_tensor,
    sample_tensors,
)
from superdl.super_dataset.reading.packs import announce
from superdl.super_dataset.reading.reader import BatchReader, ReadSettings

__all__ = [
    "LEAVES_OUT",
    "BadSample",
    "BadSamples",
    "Batch",
    "BatchInfo",
    "BatchLeftOut",
    "BatchReader",
    "LastGood",
    "OnBadSample",
    "Padding",
    "ReadSettings",
    "SampleTensors",
    "Verify",
    "announce",
    "bad_sample_error",
    "batch_info",
    "check_label_dtype",
    "check_policies",
    "delivered_order",
    "label_tensor",
    "sample_tensors",
]
