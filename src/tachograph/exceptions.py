"""All errors that Tachograph raises deliberately.

TachographError
├── ConfigError        a setting, a config section or an argument of `init` is invalid
│   └── PluginError    a training plugin cannot be loaded, does not fit the training or changed nothing
├── RunNameError       a run name cannot be used as a folder name
├── LogDirError        the log folder cannot be written
├── NoRunError         `tachograph.log` or a similar function was called before `tachograph.init`
├── RunNotFoundError   no run has that name or lies at that path
├── ControlError       a control cannot be registered or requested
├── ArtifactError      an artifact is missing, was changed or cannot be stored
├── CodeError          captured code is missing, or cannot be compared or rebuilt
├── ServeError         the dashboard cannot listen on the given address
├── ColumnStoreError   ClickHouse cannot be reached, or rejected a statement
└── TableExportError   there is nothing to export, or the table cannot be written

They are raised during setup or while reading. Recording raises nothing: a fault costs at most one record and is
reported in a `telemetry_error` record.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = [
    "ArtifactError",
    "CodeError",
    "ColumnStoreError",
    "ConfigError",
    "ControlError",
    "LogDirError",
    "NoRunError",
    "PluginError",
    "RunNameError",
    "RunNotFoundError",
    "ServeError",
    "TableExportError",
    "TachographError",
    "did_you_mean",
]


class TachographError(Exception):
    """Base of all errors raised by Tachograph."""


class ConfigError(TachographError, ValueError):
    """A setting, a config section or an argument is invalid; the message names it and the remedy."""


class ProgramNotFoundError(ConfigError):
    """The program that `tacho run` should start does not exist or is not executable."""


class PluginError(ConfigError):
    """A training plugin cannot be loaded, conflicts with another one, does not fit the training or changed nothing."""


class RunNameError(ConfigError):
    """A run name cannot be used as the name of a folder inside the log folder."""


class LogDirError(TachographError, OSError):
    """The log folder cannot be created or written."""


class NoRunError(TachographError, RuntimeError):
    """Something was logged to the current run, but no run is active."""


class RunNotFoundError(TachographError, FileNotFoundError):
    """No run has that name, or the folder holds no run."""


class ControlError(TachographError, ValueError):
    """A control cannot be registered or requested."""


class ArtifactError(TachographError):
    """An artifact is missing, was changed or cannot be stored; the message says what to do."""


class CodeError(TachographError):
    """Captured code is missing, or cannot be compared or rebuilt; also raised where git fails."""


class ServeError(TachographError, OSError):
    """The dashboard cannot listen on the given address."""


class ColumnStoreError(TachographError):
    """ClickHouse cannot be reached, or rejected a statement.

    Attributes:
        may_retry: whether the same statement may succeed later, because the server was unreachable or overloaded.
        code: the number that ClickHouse gives to the error; 0 if there was no answer.
    """

    def __init__(self, reason: str, *, may_retry: bool = False, code: int = 0) -> None:
        super().__init__(reason)
        self.may_retry = may_retry
        self.code = code


class TableExportError(TachographError):
    """There is nothing to export, or the table cannot be written."""


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the closest of the candidates, or an empty string."""
    import difflib

    matches = difflib.get_close_matches(name, list(candidates), n=1, cutoff=0.5)
    return f"; did you mean {matches[0]!r}?" if matches else ""
