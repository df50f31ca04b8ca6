"""Every error Tachograph raises on purpose.

TachographError
├── ConfigError        a setting, a config section or an argument of `init` is wrong
├── RunNameError       a run name that cannot be a folder of its own
├── LogDirError        the log folder cannot be written
├── NoRunError         `tachograph.log` and the like before any `tachograph.init`
├── RunNotFoundError   there is no run of that name or at that path
├── ControlError       a control that cannot be registered or requested
└── ServeError         the dashboard cannot listen where it was told to

All of them belong to set-up or to reading. While a run is being recorded, nothing is raised: a fault costs
one record and is told in a `telemetry_error` record.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = [
    "ConfigError",
    "ControlError",
    "LogDirError",
    "NoRunError",
    "RunNameError",
    "RunNotFoundError",
    "ServeError",
    "TachographError",
    "did_you_mean",
]


class TachographError(Exception):
    """Base of all errors raised by Tachograph."""


class ConfigError(TachographError, ValueError):
    """A setting, a config section or an argument is wrong; the message names it and the remedy."""


class RunNameError(ConfigError):
    """A run name that cannot be the name of a folder inside the log folder."""


class LogDirError(TachographError, OSError):
    """The log folder cannot be created or written."""


class NoRunError(TachographError, RuntimeError):
    """Something was logged to the current run, and there is none."""


class RunNotFoundError(TachographError, FileNotFoundError):
    """No run of that name, or no run in that folder."""


class ControlError(TachographError, ValueError):
    """A control cannot be registered or requested as asked."""


class ServeError(TachographError, OSError):
    """The dashboard cannot listen on the address it was given."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the closest of the known names, or an empty string."""
    import difflib

    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {matches[0]!r}?" if matches else ""
