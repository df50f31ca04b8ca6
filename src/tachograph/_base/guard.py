"""The guard: an exception inside telemetry never propagates into the training code.

The guard counts a fault and logs one line to the `tachograph` logger, once per operation and exception type. With
``guard.strict`` it re-raises instead; the test suite runs this way.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

__all__ = ["Guard", "guard", "guarded", "guarded_callback", "warn"]

_Function = TypeVar("_Function", bound=Callable[..., Any])

_MAX_FAULTS = 100
_MAX_FAULT_CHARS = 1_000


class Guard:
    """Suppresses and counts telemetry faults; see the module."""

    def __init__(self) -> None:
        self.strict = False
        self.num_faults = 0
        self.faults: list[tuple[str, str]] = []
        """Operation and text of each fault. Never the exception: its frames would keep the caller's tensors alive."""
        self._logged_faults: set[tuple[str, type[BaseException]]] = set()

    def __call__(self, operation: str, on_fault: Callable[[str, Exception], None] | None = None) -> _GuardedBlock:
        """Guard a block: ``with guard("writing the heartbeat"): ...``.

        Args:
            operation: a phrase that completes "while …".
            on_fault: called with the operation and the exception, before the guard reports it.
        """
        return _GuardedBlock(self, operation, on_fault)

    def report(self, operation: str, fault: BaseException) -> None:
        """Count a fault and log it, once per operation and exception type."""
        self.num_faults += 1
        if len(self.faults) < _MAX_FAULTS:
            with contextlib.suppress(Exception):  # its __str__ may raise
                self.faults.append((operation, f"{type(fault).__name__}: {fault}"[:_MAX_FAULT_CHARS]))
        if (operation, type(fault)) not in self._logged_faults:
            self._logged_faults.add((operation, type(fault)))
            warn("suppressed a telemetry fault while %s: %s: %s", operation, type(fault).__name__, fault)

    def reset(self) -> None:
        """Clear the counts and the log history, which a forked child must not inherit from its parent."""
        self.num_faults = 0
        self.faults.clear()
        self._logged_faults.clear()


class _GuardedBlock:
    __slots__ = ("_guard", "_on_fault", "_operation")

    def __init__(self, guard: Guard, operation: str, on_fault: Callable[[str, Exception], None] | None) -> None:
        self._guard = guard
        self._operation = operation
        self._on_fault = on_fault

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, _traceback: TracebackType | None
    ) -> bool:
        if fault is None or not isinstance(fault, Exception):
            return False
        if self._on_fault is not None:  # it may raise as well, so it gets a guard of its own
            try:
                self._on_fault(self._operation, fault)
            except Exception:
                if self._guard.strict:
                    raise
        self._guard.report(self._operation, fault)
        return not self._guard.strict


guard = Guard()


def warn(text: str, *values: object, is_error: bool = False) -> None:
    """Log a warning to the `tachograph` logger; ignore handlers that raise and an interpreter that is shutting down.

    Args:
        text: the text, with a `%s` for each value.
        values: the values.
        is_error: log an error instead.
    """
    with contextlib.suppress(Exception):
        import logging

        logging.getLogger("tachograph").log(logging.ERROR if is_error else logging.WARNING, text, *values)


def guarded(operation: str) -> Callable[[_Function], _Function]:
    """Return a decorator that guards a function; cheaper than `with guard(…)` when nothing is raised."""

    def decorate(function: _Function) -> _Function:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> None:
            try:
                function(*args, **kwargs)
            except Exception as fault:
                guard.report(operation, fault)
                if guard.strict:
                    raise

        return wrapper  # type: ignore[return-value]

    return decorate


def guarded_callback(framework: str) -> Callable[[_Function], _Function]:
    """Return a decorator that guards a method called by a framework; reports name the framework and the method."""
    return lambda function: guarded(f"{framework} called {function.__name__}")(function)
