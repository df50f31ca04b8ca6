"""Run every call of a function inside a context manager, for any kind of function.

A coroutine or a generator does its work after the call has returned, so each kind needs a wrapper that keeps the
context manager open until the function has run to its end.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

__all__ = ["wrap_calls"]

Function = TypeVar("Function", bound=Callable[..., Any])


def wrap_calls(function: Function, make_context: Callable[[tuple[Any, ...]], AbstractContextManager[Any]]) -> Function:
    """Return a function that enters a new context manager for each call and leaves it when the call has finished.

    Args:
        function: a function, coroutine function or (async) generator function.
        make_context: creates the context manager from the positional arguments of the call.
    """
    wrapper: Any
    if inspect.isasyncgenfunction(function):

        @functools.wraps(function)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            with make_context(args):
                items = function(*args, **kwargs)
                try:
                    item = await _start_without_hooks(items)
                    while True:
                        try:
                            value = yield item
                        except GeneratorExit:
                            await items.aclose()
                            raise
                        except BaseException as error:  # noqa: BLE001 - the wrapped function handles it
                            item = await items.athrow(error)
                        else:
                            item = await items.asend(value)
                except StopAsyncIteration:
                    return

    elif inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            with make_context(args):
                return await function(*args, **kwargs)

    elif inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with make_context(args):
                return (yield from function(*args, **kwargs))

        if getattr(getattr(function, "__code__", None), "co_flags", 0) & inspect.CO_ITERABLE_COROUTINE:
            wrapper = types.coroutine(wrapper)  # keep it awaitable, as the original was

    else:

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with make_context(args):
                return function(*args, **kwargs)

    return wrapper  # type: ignore[no-any-return] # same signature as the function


def _start_without_hooks(items: Any) -> Any:
    """Start an asynchronous generator without registering it with the event loop.

    A closing loop closes all registered generators concurrently. The wrapper is registered and closes this one
    itself; registering both would close it twice at once.
    """
    hooks = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(None, None)
    try:
        return items.__anext__()
    finally:
        sys.set_asyncgen_hooks(*hooks)
