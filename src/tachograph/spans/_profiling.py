"""Profiling your own code: a decorator for functions, a context manager for blocks."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from time import perf_counter
from types import TracebackType
from typing import Any, TypeVar, overload

import msgspec

from tachograph._base.decorator import wrap_calls
from tachograph.exceptions import ConfigError
from tachograph.recorder import process_state
from tachograph.spans._profile_stats import record
from tachograph.spans._profiling_config import ProfilingConfig, active, check_config

__all__ = ["profile_function", "profile_block"]

Function = TypeVar("Function", bound=Callable[..., Any])


class profile_block(msgspec.Struct, gc=False, eq=False):  # noqa: N801 - used like a function, with one call less
    """Time a block: ``with tachograph.profile_block("forward"): ...``.

    Costs about a microsecond, and less without an active run. An exception of the block propagates unchanged, and its
    time counts. An object may be entered again, also inside itself, but only by one thread at a time.

    Args:
        name: the name of the block in the charts, after `profiling/`.
        config: which calls to record, instead of the config set by `configure_profiling`.

    Raises:
        ConfigError: if the config is not a ProfilingConfig.
    """

    name: str
    config: ProfilingConfig | None = None
    _starts: Any = None

    def __enter__(self) -> None:
        if self.config is not None:
            check_config(self.config)
        if not process_state.is_disabled:
            self._starts = (perf_counter(), self._starts)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._starts is None:  # the run was disabled when the block was entered
            return
        stop_s = perf_counter()
        start_s, self._starts = self._starts
        standard = active.config
        config = self.config or standard
        if config.enabled and standard.enabled:
            record(self.name, stop_s - start_s, config)


@overload
def profile_function(function: Function, /) -> Function: ...


@overload
def profile_function(
    *, name: str | None = None, config: ProfilingConfig | None = None
) -> Callable[[Function], Function]: ...


def profile_function(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    config: ProfilingConfig | None = None,
) -> Any:
    """Time each call of a function: ``@tachograph.profile_function``.

    A method is named after the class of its object, as in `Trainer.step`. A coroutine or a generator is timed from its
    first step to its end, including the time it waits.

    Args:
        function: the function, if the decorator is used without arguments.
        name: the name of the function in the charts, after `profiling/`.
        config: which calls to record, instead of the config set by `configure_profiling`.

    Raises:
        ConfigError: if it decorates something other than a function, or an argument is invalid.

    Example:
        >>> @tachograph.profile_function(config=tachograph.ProfilingConfig(log_interval=10))
        ... def collate(samples): ...
    """
    check_config(config)
    if name is not None and (not isinstance(name, str) or not name):
        raise ConfigError(f'name={name!r}: expected a name, such as "forward"')
    if function is None:
        return lambda function: _wrap(function, name, config)
    return _wrap(function, name, config)


_LONG = (inspect.iscoroutinefunction, inspect.isasyncgenfunction, inspect.isgeneratorfunction)
"""Functions that still run after their call has returned."""


def _wrap(function: Any, name: str | None, config: ProfilingConfig | None) -> Any:
    if isinstance(function, (staticmethod, classmethod)):
        return type(function)(_wrap(function.__func__, name, config))
    if isinstance(function, type) or not callable(function):
        what = "a class" if isinstance(function, type) else f"a {type(function).__name__}"
        raise ConfigError(
            f"@tachograph.profile_function cannot decorate {what}: put it on the functions to time, below @property, "
            'or use `with tachograph.profile_block("name")`'
        )
    full_name, method = (name, "") if name is not None else _names(function)
    if any(is_long(function) for is_long in _LONG):
        return wrap_calls(function, lambda args: profile_block(full_name or f"{_class_name(args)}.{method}", config))

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if process_state.is_disabled:
            return function(*args, **kwargs)
        default_config = active.config
        call_config = config or default_config
        if not (call_config.enabled and default_config.enabled):
            return function(*args, **kwargs)
        start_s = perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            stop_s = perf_counter()
            record(full_name or f"{_class_name(args)}.{method}", stop_s - start_s, call_config)

    return call


def _names(function: Any) -> tuple[str | None, str]:
    """Return the name of a function; for a method, None and its name in the class."""
    bound_object = getattr(function, "__self__", None)
    if inspect.ismethod(function) and bound_object is not None:
        return f"{_class_name((bound_object,))}.{function.__name__}", ""
    full = str(getattr(function, "__qualname__", "") or type(function).__qualname__).rpartition("<locals>.")[2]
    owner, _, last = full.rpartition(".")
    code = getattr(inspect.unwrap(function), "__code__", None)
    takes_object = code is not None and code.co_argcount > 0 and code.co_varnames[0] in {"self", "cls"}
    return (None, last) if owner and takes_object else (full, "")


def _class_name(args: tuple[Any, ...]) -> str:
    """Return the name of the class on which a method was called."""
    if not args:
        return "?"  # called with its object as a keyword argument
    owner = args[0]
    return owner.__name__ if isinstance(owner, type) else type(owner).__name__
