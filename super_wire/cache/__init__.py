"""The cache client: addresses, credentials, protocol, connections and cluster nodes."""

from __future__ import annotations

from superdl.super_wire.cache.address import CacheAddress, Credentials
from superdl.super_wire.cache.commands import Command, exchange
from superdl.super_wire.cache.connection import IO_TIMEOUT_S, CacheConnection, ProtocolDoubtError
from superdl.super_wire.cache.nodes import (
    MAX_ROUNDS,
    SLOTS,
    Node,
    NodeConnections,
    SlotMap,
    key_slot,
    parse_redirection,
)
from superdl.super_wire.cache.resp import (
    CRLF,
    MAX_BULK_BYTES,
    MAX_LINE_BYTES,
    ErrorReply,
    Reply,
    WrongPasswordError,
    encode_command,
    is_for_memory,
    refusal,
)

__all__ = [
    "CRLF",
    "IO_TIMEOUT_S",
    "MAX_BULK_BYTES",
    "MAX_LINE_BYTES",
    "MAX_ROUNDS",
    "SLOTS",
    "CacheAddress",
    "CacheConnection",
    "Command",
    "Credentials",
    "ErrorReply",
    "Node",
    "NodeConnections",
    "ProtocolDoubtError",
    "Reply",
    "SlotMap",
    "WrongPasswordError",
    "encode_command",
    "exchange",
    "is_for_memory",
    "key_slot",
    "parse_redirection",
    "refusal",
]
