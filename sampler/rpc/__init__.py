"""Calls to a coordinator: retries, one connection per process, forks."""

from __future__ import annotations

from superdl.sampler.rpc.client import FIRST_CONTACT, RUNNING, Client, Patience
from superdl.sampler.rpc.connection import checked_address

__all__ = ["FIRST_CONTACT", "RUNNING", "Client", "Patience", "checked_address"]
