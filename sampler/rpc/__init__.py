"""Calls to a coordinator: a client with retries, one connection per process, and its handling of forks."""

from __future__ import annotations

from superdl.sampler.rpc.client import FIRST_CONTACT, RUNNING, Client, Patience
from superdl.sampler.rpc.connection import checked_address

__all__ = ["FIRST_CONTACT", "RUNNING", "Client", "Patience", "checked_address"]
