"""What ``superdl doctor`` looks at: each check gives a finding with its reason and its remedy.

:data:`CHECKS` lists them in their order: each stands after those that it builds on.
:mod:`superdl.doctor.checking` has what they are asked about and runs them; the other modules look.
"""

from __future__ import annotations

from superdl.doctor.aws import check_credentials, read_stack
from superdl.doctor.cache import (
    check_cache,
    check_clients,
    check_coordinator,
    check_memory,
    check_rights,
    check_room,
)
from superdl.doctor.checking import Case, Check, CheckStatus, Finding, run_checks
from superdl.doctor.function import check_concurrency, check_function, check_version
from superdl.doctor.machine import check_clock, check_open_files, check_shared_memory
from superdl.doctor.sample import check_bandwidth, check_dataset_fits, check_sample
from superdl.doctor.source import check_listing, check_object, check_region

__all__ = ["CHECKS", "Case", "Check", "CheckStatus", "Finding", "read_stack", "run_checks"]

_FOR_A_SAMPLE = ("listing", "object", "coordinator", "cache", "cache rights", "function version")

CHECKS = (
    Check("credentials", check_credentials, by_role=True),
    Check("listing", check_listing, needs=("credentials",), by_role=True),
    Check("object", check_object, needs=("listing",), by_role=True),
    Check("coordinator", check_coordinator),
    Check("room in the cache", check_room, needs=("coordinator",)),
    Check("region", check_region, needs=("listing",), by_role=True),
    Check("cache", check_cache),
    Check("cache rights", check_rights, needs=("cache",)),
    Check("cache memory", check_memory, needs=("cache",)),
    Check("function", check_function, needs=("coordinator",), limit_s=135.0, by_role=True),
    Check("function version", check_version, needs=("function",), limit_s=75.0, by_role=True),
    Check("sample", check_sample, needs=_FOR_A_SAMPLE, limit_s=0.0),
    Check("dataset fits", check_dataset_fits, needs=("sample",)),
    Check("clock", check_clock),
    Check("bandwidth", check_bandwidth, needs=("sample",)),
    Check("function limits", check_concurrency, needs=("function",), by_role=True),
    Check("cache clients", check_clients, needs=("cache",)),
    Check("open files", check_open_files),
    Check("shared memory", check_shared_memory),
)
