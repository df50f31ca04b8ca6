"""The errors that code written for W&B may catch."""

from __future__ import annotations

from tachograph.bridges.wandb.facade.errors import (
    AuthenticationError,
    CommError,
    Error,
    NotAvailableError,
    UnsupportedError,
    UsageError,
)

__all__ = [
    "AuthenticationError",
    "CommError",
    "Error",
    "NotAvailableError",
    "UnsupportedError",
    "UsageError",
]
