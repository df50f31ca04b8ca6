"""The exceptions of W&B."""

from __future__ import annotations

from tachograph.exceptions import TachographError

__all__ = ["AuthenticationError", "CommError", "Error", "UnsupportedError", "UsageError"]


class Error(TachographError):
    """Base of all errors that code written for W&B may catch."""


class CommError(Error):
    """Never raised: nothing is sent."""


class AuthenticationError(CommError):
    """Never raised: there is no account."""


class UsageError(Error):
    """A call is not possible in this state, such as resuming a run that does not exist."""


class UnsupportedError(UsageError):
    """A function of W&B that has no equivalent here."""


class NotAvailableError(UnsupportedError, AttributeError):
    """An attribute of W&B that has no equivalent here; `hasattr` returns False."""
