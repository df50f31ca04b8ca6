"""The fields of an `error` record: type, message and traceback of an exception, with secrets masked."""

from __future__ import annotations

import traceback
from typing import Any

from tachograph._base.guard import reraise_from_signal_handler
from tachograph.records import mask_text

__all__ = ["error_fields", "error_message", "error_type", "traceback_of"]

_MAX_MESSAGE_CHARS = 2_000
_MAX_TRACEBACK_CHARS = 20_000
_MAX_SEARCHED_CHARS = 1_000_000
"""Far more than the record stores, so that masking sees a secret at the cut as a whole."""


def error_fields(error: BaseException, *, fatal: bool, where: str | None = None) -> dict[str, Any]:
    """Return the fields of an `error` record."""
    fields = {
        "error_type": error_type(error),
        "error_message": error_message(error),
        "traceback": traceback_of(error),
        "fatal": fatal,
    }
    return {**fields, "where": where} if where else fields


def error_type(error: BaseException) -> str:
    """Return the name of an exception's class, with its module unless that is `builtins`."""
    return f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")


def error_message(error: BaseException) -> str:
    """Return the message of an exception, with secrets masked."""
    try:
        return mask_text(str(error)[:_MAX_SEARCHED_CHARS])[:_MAX_MESSAGE_CHARS]
    except Exception as fault:  # noqa: BLE001 - an exception's own __str__ may raise
        reraise_from_signal_handler(fault)
        return f"(message unreadable: {type(fault).__name__})"


def traceback_of(error: BaseException) -> str:
    """Return the traceback of an exception, with secrets masked; only the end of a very long one."""
    try:
        lines = traceback.format_exception(type(error), error, error.__traceback__)
    except Exception as fault:  # noqa: BLE001 - as above
        reraise_from_signal_handler(fault)
        lines = traceback.format_tb(error.__traceback__)
    return mask_text("".join(lines)[-_MAX_SEARCHED_CHARS:])[-_MAX_TRACEBACK_CHARS:]
