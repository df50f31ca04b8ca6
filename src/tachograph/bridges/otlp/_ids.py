"""Trace and span ids, derived from the run, so that a repeated delivery has the ids of the first one.

A trace id starts with the id of the run, and a span keeps the id that it has in the journal.
"""

from __future__ import annotations

import hashlib
import re

__all__ = ["RUN_SPAN", "derived_id", "root_span_id", "span_id_bytes", "trace_id_bytes"]

_HEX_ID = re.compile(r"(?!0{16})[0-9a-f]{16}")

RUN_SPAN = "run"
"""Name of the span that contains a whole attempt."""


def trace_id_bytes(run_id: str, attempt: int, interval: int) -> bytes:
    """Return the id of the trace of one checkpoint interval; interval 0 also is the trace of the attempt itself."""
    return span_id_bytes(run_id) + derived_id(run_id, attempt, interval)


def root_span_id(run_id: str, attempt: int, interval: int) -> bytes:
    """Return the id of the root span of such a trace."""
    return derived_id(run_id, attempt, interval, "root")


def span_id_bytes(text: str) -> bytes:
    """Return an id of the journal as bytes; ids in another format are hashed."""
    return bytes.fromhex(text) if _HEX_ID.fullmatch(text) else derived_id(text)


def derived_id(*parts: object) -> bytes:
    """Return the id of something that has no id in the journal."""
    return hashlib.blake2b("\0".join(map(str, parts)).encode(), digest_size=8).digest()
