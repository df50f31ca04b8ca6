"""The guard for usage telemetry. The text of a fault may quote private values, so only its type is reported."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tachograph._base.guard import guard, reraise_from_signal_handler
from tachograph.exceptions import TachographError

__all__ = ["guard_silently"]


class _RedactedFault(Exception):  # noqa: N818 - stands for another exception
    """A fault of which only the type is reported."""


@contextlib.contextmanager
def guard_silently(action: str) -> Iterator[None]:
    """Guard a block like `guard`, but report only the type of a fault.

    Our own errors are reported in full, because their texts contain no values of the user.

    Args:
        action: the action in the block, as in "sending usage telemetry".
    """
    try:
        yield
    except Exception as fault:
        reraise_from_signal_handler(fault)
        guard.report(action, fault if isinstance(fault, TachographError) else _RedactedFault(type(fault).__name__))
        if guard.strict:
            raise
