"""Functions with something around each call, whatever kind of function they are."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

__all__ = ["decorated"]

Function = TypeVar("Function", bound=Callable[..., Any])


def decorated(function: Function, make: Callable[[tuple[Any, ...]], AbstractContextManager[Any]]) -> Function:
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
                    item = await items.__anext__()
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

    else:

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with make(args):
                return function(*args, **kwargs)

    return wrapper  # type: ignore[no-any-return] # it takes and returns what the function does
