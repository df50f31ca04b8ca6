"""The guard, with its mouth shut: what a fault says may quote what it stumbled over, so only its type is told."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tachograph._base.guard import guard
from tachograph.exceptions import TachographError

__all__ = ["quiet"]


class _Unsaid(Exception):  # noqa: N818 - it stands for another
    """A fault of which only the type is told."""


@contextlib.contextmanager
def quiet(place: str) -> Iterator[None]:
    """Guard a block. Our own errors, which name no values, are told in full."""
    try:
        yield
    except Exception as fault:
        guard.report(place, fault if isinstance(fault, TachographError) else _Unsaid(type(fault).__name__))
        if guard.strict:
            raise
