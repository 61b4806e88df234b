"""The checks of ``superdl doctor``: each returns a finding with its reason and its remedy.

:data:`CHECKS` lists them in order: each comes after those that it builds on. :mod:`superdl.doctor.checking`
has their input and the runner; the other modules implement them.
"""

from __future__ import annotations

from superdl.doctor.all_samples import check_all_samples
from superdl.doctor.cache import check_cache, check_coordinator, check_memory
from superdl.doctor.checking import Case, Check, CheckStatus, Finding, run_checks
from superdl.doctor.function import check_function
from superdl.doctor.preflight import preflight
from superdl.doctor.sample import check_dataset_fits, check_sample, check_shared_memory
from superdl.doctor.source import check_credentials, check_listing
from superdl.doctor.store import check_store

__all__ = ["ALL_SAMPLES", "CHECKS", "Case", "Check", "CheckStatus", "Finding", "preflight", "run_checks"]

_FOR_A_SAMPLE = ("listing", "coordinator", "cache", "function")

CHECKS = (
    Check("credentials", check_credentials, by_role=True),
    Check("listing", check_listing, needs=("credentials",), by_role=True),
    Check("coordinator", check_coordinator),
    Check("cache", check_cache),
    Check("cache memory", check_memory, needs=("cache",)),
    Check("store", check_store, needs=("coordinator",)),
    Check("function", check_function, needs=("coordinator",), limit_s=210.0, by_role=True),
    Check("sample", check_sample, needs=_FOR_A_SAMPLE, limit_s=0.0),
    Check("dataset fits", check_dataset_fits, needs=("sample",)),
    Check("shared memory", check_shared_memory),
)

ALL_SAMPLES = Check("all samples", check_all_samples, needs=_FOR_A_SAMPLE, limit_s=1e7)
"""Runs only on request, because it takes as long as an epoch."""
