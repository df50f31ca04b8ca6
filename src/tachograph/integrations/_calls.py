"""Methods that a framework or a loop calls, and that must not let a fault of ours reach it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from tachograph.guard import guard

__all__ = ["called_by", "guarded"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def guarded(place: str) -> Callable[[_Function], _Function]:
    """Keep a fault of ours from the training loop: cheaper than `with guard(…)` where nothing is at fault."""

    def decorate(function: _Function) -> _Function:
        @functools.wraps(function)
        def safely(*arguments: Any, **named: Any) -> None:
            try:
                function(*arguments, **named)
            except Exception as fault:
                guard.caught(place, fault)
                if guard.strict:
                    raise

        return safely  # type: ignore[return-value]

    return decorate


def called_by(who: str) -> Callable[[_Function], _Function]:
    """Guard the methods that a framework calls, and name them in what is told of a fault."""
    return lambda function: guarded(f"{who} called {function.__name__}")(function)
