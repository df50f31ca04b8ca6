"""The exceptions of W&B."""

from __future__ import annotations

from tachograph.exceptions import TachographError

__all__ = ["AuthenticationError", "CommError", "Error", "UnsupportedError", "UsageError"]


class Error(TachographError):
    """Base of all errors that code written for W&B may catch."""


class CommError(Error):
    """A run or an artifact is not on this machine, or cannot be stored there."""


class AuthenticationError(CommError):
    """Never raised: there is no account."""


class UsageError(Error):
    """A call is not possible in this state, such as resuming a run that does not exist."""


class UnsupportedError(UsageError):
    """A function of W&B that has no equivalent here."""


class ArtifactStatusError(AttributeError):
    """A method or an attribute of an artifact is not possible in its state."""


class ArtifactNotLoggedError(ArtifactStatusError):
    """The artifact has not been logged yet."""


class ArtifactFinalizedError(ArtifactStatusError):
    """The artifact has been logged, and cannot be changed any more."""


class WaitTimeoutError(Error):
    """An artifact was not stored within the time."""


class NotAvailableError(UnsupportedError, AttributeError):
    """An attribute of W&B that has no equivalent here; `hasattr` returns False."""
