"""Functions with something around each call, whatever kind of function they are."""

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


def wrap_calls(function: Function, make: Callable[[tuple[Any, ...]], AbstractContextManager[Any]]) -> Function:
    """Return a function of which each call has a context manager of its own around it, to its very end.

    Args:
        function: any function; of a coroutine or a generator, the end is when it has run to its end.
        make: makes the context manager, given the arguments of a call that have no name.
    """
    wrapper: Any
    if inspect.isasyncgenfunction(function):

        @functools.wraps(function)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            with make(args):
                items = function(*args, **kwargs)
                try:
                    item = await _begun_unseen(items)
                    while True:
                        try:
                            sent = yield item
                        except GeneratorExit:
                            await items.aclose()
                            raise
                        except BaseException as error:  # noqa: BLE001 - it is for the function to handle
                            item = await items.athrow(error)
                        else:
                            item = await items.asend(sent)
                except StopAsyncIteration:
                    return

    elif inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            with make(args):
                return await function(*args, **kwargs)

    elif inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with make(args):
                return (yield from function(*args, **kwargs))

        if getattr(getattr(function, "__code__", None), "co_flags", 0) & inspect.CO_ITERABLE_COROUTINE:
            wrapper = types.coroutine(wrapper)  # as the function was, or nobody could await it

    else:

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with make(args):
                return function(*args, **kwargs)

    return wrapper  # type: ignore[no-any-return] # it takes and returns what the function does


def _begun_unseen(items: Any) -> Any:
    """Begin an asynchronous generator that the event loop is not told of.

    A loop that ends closes every one it knows, side by side. It knows the one around, which closes this one.
    """
    hooks = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(None, None)
    try:
        return items.__anext__()
    finally:
        sys.set_asyncgen_hooks(*hooks)
