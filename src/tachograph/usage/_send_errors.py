"""The decorator `send_errors`, and how it reports every exception once.

An exception may pass several watched functions, one inside the other. The innermost one reports it and leaves a mark on
the exception; the others find the mark and stay silent. The mark is an object that all watched calls of one call chain
share (`_current_chain`), so an exception that is raised again in another chain is reported again. The outermost call of
a chain removes the mark. A list of reported exceptions would do as well, but would keep their frames, and the tensors
in them, alive.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextvars import ContextVar
from types import TracebackType
from typing import Any, TypeVar, overload

from tachograph._base.decorator import wrap_calls
from tachograph._base.guard import suppress
from tachograph.exceptions import ConfigError
from tachograph.usage._errors import is_failure
from tachograph.usage._guard import guard_silently
from tachograph.usage._manager import find_manager

__all__ = ["send_errors"]

Function = TypeVar("Function", bound=Callable[..., Any])

_MARK = "__tachograph_reported__"
_NO_CHAIN = object()
"""The chain of generators that no watched function called."""

_current_chain: ContextVar[object | None] = ContextVar("tachograph_usage_chain", default=None)


@overload
def send_errors(function: Function) -> Function: ...
@overload
def send_errors(*, app: str) -> Callable[[Function], Function]: ...
def send_errors(function: Function | None = None, *, app: str | None = None) -> Any:
    """Report the exceptions that a function raises, and let them propagate unchanged: ``@send_errors``.

    An exception that passes several watched functions is reported by the innermost one. If no app is configured, or
    usage telemetry is off, the function is just called.

    Args:
        function: any function, method, coroutine or generator.
        app: the app that it belongs to; only needed if a process has several apps and the function's package belongs
            to none of them.
    """
    if function is None:
        return lambda target: _watch(target, app)
    return _watch(function, app)


def _watch(function: Any, app: str | None) -> Any:
    if isinstance(function, (classmethod, staticmethod)):
        return type(function)(_watch(function.__func__, app))
    if not callable(function) or isinstance(function, type):
        raise ConfigError(f"@send_errors is for functions and methods, not for {function!r}; decorate its methods")
    is_generator = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
    return wrap_calls(function, lambda _arguments: _WatchedCall(function, app, is_generator=is_generator))


class _WatchedCall:
    """The context of one call of a watched function."""

    __slots__ = ("_app", "_chain", "_function", "_is_generator")

    def __init__(self, function: Callable[..., Any], app: str | None, *, is_generator: bool) -> None:
        self._function = function
        self._app = app
        self._is_generator = is_generator
        self._chain: object | None = None
        """The chain that this call started, if it is the outermost."""

    def __enter__(self) -> None:
        # A generator starts no chain: while it is suspended, its caller would seem to be inside of it.
        if not self._is_generator and _current_chain.get() is None:
            self._chain = object()
            _current_chain.set(self._chain)

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        chain = _current_chain.get()
        if self._chain is not None:
            _current_chain.set(None)
        if error is not None and is_failure(error):
            with suppress(RecursionError), guard_silently("reporting an error"):
                self._report(error, chain or _NO_CHAIN)

    def _report(self, error: BaseException, chain: object) -> None:
        if isinstance(error, RecursionError) and self._chain is None and chain is not _NO_CHAIN:
            return  # the stack is exhausted here; the outermost call has room to report it
        attributes = vars(error)
        mark = attributes.get(_MARK) if self._chain is None else attributes.pop(_MARK, None)
        if mark is chain:
            return
        manager = find_manager(self._function, self._app)
        if manager is not None and manager.enabled:
            # The outermost call leaves no mark, so that the program gets the exception as it was raised.
            if self._chain is None:
                attributes[_MARK] = chain
            manager.send_error(error, self._function)
