"""Observes calls of the script to functions of other libraries, and changes nothing about them."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

from tachograph._base.guard import guard
from tachograph._base.patching import Patches

if TYPE_CHECKING:
    from inspect import Signature

__all__ = ["CallObserver", "Observe", "is_in"]

Observe = Callable[..., Callable[[Any], None] | None]
"""Called with all arguments of a call, by position, before it is made; returns a function to call with its result."""


class _CallState(threading.local):
    is_inside = False


class CallObserver:
    """Wraps functions. The original gets the same arguments, and its result and exceptions are the caller's.

    Calls inside an observed call are not observed: many libraries call themselves.

    Args:
        subject: the observed calls, for messages.
        is_ignored: returns whether a call is not observed, given the frame that makes it.
    """

    def __init__(self, subject: str, is_ignored: Callable[[FrameType], bool]) -> None:
        self._subject = subject
        self._is_ignored = is_ignored
        self._state = _CallState()
        self.patches = Patches()

    def wrap(self, owner: Any, name: str, observe: Observe) -> None:
        """Wrap a function of a module, or a method of a class."""
        is_static = isinstance(owner, type) and isinstance(vars(owner).get(name), staticmethod)

        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                state = self._state
                if state.is_inside:
                    return original(*args, **kwargs)
                add, fault = None, None
                try:
                    if not self._is_ignored(sys._getframe(1)):
                        bound = _signature(original).bind(*args, **kwargs)
                        bound.apply_defaults()
                        add = observe(*bound.args, **bound.kwargs)
                except Exception as error:  # noqa: BLE001 - wrong arguments: the original raises, too
                    fault = error
                state.is_inside = True
                try:
                    result = original(*args, **kwargs)
                finally:
                    state.is_inside = False
                with guard(f"recording {self._subject}"):
                    if fault is not None:
                        raise fault
                    if add is not None:
                        add(result)
                return result

            return call

        if self.patches.wrap(owner, name, make) and is_static:
            self.patches.replace(owner, name, staticmethod(getattr(owner, name)))


@functools.cache
def _signature(function: Callable[..., Any]) -> Signature:
    from inspect import signature  # not at startup: it is slow to import

    return signature(function)


def is_in(module: str, packages: tuple[str, ...]) -> bool:
    """Return whether a module is one of some packages or inside one."""
    return any(module == package or module.startswith(f"{package}.") for package in packages)
