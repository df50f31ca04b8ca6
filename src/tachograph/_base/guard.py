"""The guard: an exception inside telemetry never propagates into the training code.

The guard counts a fault and logs one line to the `tachograph` logger, once per operation and exception type. With
``guard.strict`` it re-raises instead; the test suite runs this way.

Not every exception inside telemetry is a fault of it. Python calls a signal handler between any two instructions of the
main thread, and a handler may raise: a timeout, or a request to stop. Such an exception belongs to the program and
propagates. One that is no subclass of `Exception`, such as `KeyboardInterrupt`, always does. Others are recognised by
their traceback: Python passes the interrupted frame to a handler, and no other function gets the frame of its caller.

An `except OSError` would catch them too, if a handler raises a `TimeoutError`. So code that the main thread may run
writes `except faults(OSError)` and `with suppress(OSError)`, which let them pass.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any, TypeVar

from tachograph._base.printable import safe_lines

__all__ = ["Guard", "faults", "guard", "guarded", "guarded_callback", "reraise_from_signal_handler", "suppress", "warn"]

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Exception = TypeVar("_Exception", bound=BaseException)

_MAX_FAULTS = 100
_MAX_FAULT_CHARS = 1_000
# Read past the class of an exception, which may define them anew.
_traceback_of: Callable[[BaseException], TracebackType | None] = vars(BaseException)["__traceback__"].__get__
_context_of: Callable[[BaseException], BaseException | None] = vars(BaseException)["__context__"].__get__
_HAS_VARARGS = 0x04
"""The flag of a function with `*arguments`; `inspect`, which names it, is slow to import."""


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
        """Count a fault and log it, once per operation and exception type; raise it if a signal handler raised it."""
        reraise_from_signal_handler(fault)
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
        reraise_from_signal_handler(fault)
        if self._on_fault is not None:  # it may raise as well, so it gets a guard of its own
            try:
                self._on_fault(self._operation, fault)
            except Exception as second_fault:
                reraise_from_signal_handler(second_fault)
                if self._guard.strict:
                    raise
        self._guard.report(self._operation, fault)
        return not self._guard.strict


guard = Guard()


def reraise_from_signal_handler(fault: BaseException) -> None:
    """Raise the exception again that a signal handler has raised, if it is the fault or has led to it.

    Call it in each `except` clause that would suppress any exception of code that runs on the main thread.
    """
    for exception in _chain(fault):
        if _is_from_signal_handler(exception):
            raise exception


def faults(*classes: type[_Exception]) -> tuple[type[_Exception], ...]:
    """Return classes for an `except` clause; raise the exception that it handles again if a signal handler raised it.

    Python evaluates the expression of an `except` clause only when there is an exception to match.

    Example:
        >>> try:
        ...     os.remove(path)
        ... except faults(OSError) as error:
        ...     ...
    """
    fault = sys.exc_info()[1]
    if isinstance(fault, classes):  # a later clause, or a caller, gets the others
        reraise_from_signal_handler(fault)
    return classes


class suppress(contextlib.suppress):  # noqa: N801 - it replaces that one
    """Like `contextlib.suppress`, but an exception that a signal handler has raised propagates."""

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        is_suppressed = super().__exit__(kind, fault, traceback)
        if is_suppressed and fault is not None:
            reraise_from_signal_handler(fault)
        return is_suppressed


def _chain(fault: BaseException) -> Iterator[BaseException]:
    """Yield a fault and the exceptions during whose handling it occurred, except the ones that a caller handles."""
    yield fault
    exceptions, exception = {id(fault)}, _context_of(fault)
    frame: FrameType | None = sys._getframe(2)
    callers = set()
    while frame is not None:
        callers.add(frame)
        frame = frame.f_back
    while exception is not None and id(exception) not in exceptions:
        # The traceback of an exception begins in the frame that has caught it.
        traceback = _traceback_of(exception)
        if traceback is None or traceback.tb_frame in callers:
            return
        yield exception
        exceptions.add(id(exception))
        exception = _context_of(exception)


def _is_from_signal_handler(exception: BaseException) -> bool:
    entry = _traceback_of(exception)
    while entry is not None and entry.tb_next is not None:
        interrupted_frame, entry = entry.tb_frame, entry.tb_next
        code = entry.tb_frame.f_code
        num_arguments = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & _HAS_VARARGS)
        arguments = entry.tb_frame.f_locals
        for name in code.co_varnames[:num_arguments]:
            value = arguments.get(name)
            if value is interrupted_frame or (
                type(value) is tuple and any(item is interrupted_frame for item in value)
            ):
                return True
    return False


def warn(text: str, *values: object, is_error: bool = False) -> None:
    """Log a warning to the `tachograph` logger; ignore handlers that raise and an interpreter that is shutting down.

    Args:
        text: the text, with a `%s` for each value.
        values: the values.
        is_error: log an error instead.
    """
    with contextlib.suppress(Exception):
        import logging

        # A value may be a text of others, such as the message of an exception.
        message = safe_lines(text % values if values else text)
        logging.getLogger("tachograph").log(logging.ERROR if is_error else logging.WARNING, "%s", message)


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
