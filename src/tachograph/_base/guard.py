"""The one guard: a fault inside telemetry never reaches the training code.

A guarded fault becomes one line in the `tachograph` logger (once per place and type) and is counted.
With ``guard.strict`` it is raised again instead, which is how our own tests run.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

__all__ = ["Guard", "guarded_callback", "guard", "guarded", "warn"]

_Function = TypeVar("_Function", bound=Callable[..., Any])

_MOST_KEPT = 100
_MOST_CHARS = 1_000


class Guard:
    """Swallows and counts faults; see the module."""

    def __init__(self) -> None:
        self.strict = False
        self.num_faults = 0
        self.faults: list[tuple[str, str]] = []
        """Where, and what; never the exception itself, whose frames would keep the caller's tensors alive."""
        self._told: set[tuple[str, type[BaseException]]] = set()

    def __call__(self, place: str, tell: Callable[[str, Exception], None] | None = None) -> _Guarded:
        """Guard a block: ``with guard("writing the heartbeat"): ...``.

        Args:
            place: what is being done.
            tell: called with the place and the fault, for those who keep a record of their own.
        """
        return _Guarded(self, place, tell)

    def report(self, place: str, fault: BaseException) -> None:
        """Count a fault that was caught elsewhere, and tell of it once."""
        self.num_faults += 1
        if len(self.faults) < _MOST_KEPT:
            with contextlib.suppress(Exception):  # it may fail to say what it is
                self.faults.append((place, f"{type(fault).__name__}: {fault}"[:_MOST_CHARS]))
        if (place, type(fault)) not in self._told:
            self._told.add((place, type(fault)))
            warn("a telemetry fault was swallowed while %s: %s: %s", place, type(fault).__name__, fault)

    def reset(self) -> None:
        """Forget what was counted, and in a forked child whatever the parent told."""
        self.num_faults = 0
        self.faults.clear()
        self._told.clear()


class _Guarded:
    __slots__ = ("_guard", "_place", "_tell")

    def __init__(self, guard: Guard, place: str, tell: Callable[[str, Exception], None] | None) -> None:
        self._guard = guard
        self._place = place
        self._tell = tell

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, _traceback: TracebackType | None
    ) -> bool:
        if fault is None or not isinstance(fault, Exception):
            return False
        if self._tell is not None:
            try:
                self._tell(self._place, fault)
            except Exception:
                if self._guard.strict:
                    raise
        self._guard.report(self._place, fault)
        return not self._guard.strict


guard = Guard()


def warn(text: str, *values: object) -> None:
    """Say something in the `tachograph` logger, unless a handler of the program's or its end prevents it."""
    with contextlib.suppress(Exception):
        import logging

        logging.getLogger("tachograph").warning(text, *values)


def guarded(place: str) -> Callable[[_Function], _Function]:
    """Keep a fault of ours from the training loop: cheaper than `with guard(…)` where nothing is at fault."""

    def decorate(function: _Function) -> _Function:
        @functools.wraps(function)
        def safely(*arguments: Any, **named: Any) -> None:
            try:
                function(*arguments, **named)
            except Exception as fault:
                guard.report(place, fault)
                if guard.strict:
                    raise

        return safely  # type: ignore[return-value]

    return decorate


def guarded_callback(who: str) -> Callable[[_Function], _Function]:
    """Guard the methods that a framework calls, and name them in what is told of a fault."""
    return lambda function: guarded(f"{who} called {function.__name__}")(function)
