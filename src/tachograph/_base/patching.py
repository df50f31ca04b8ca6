"""Wrapping functions of other libraries, and undoing it.

Every place that patches code we do not own goes through `Patches`, so the same rules hold everywhere: nothing is
wrapped twice, the last patch is undone first, and an attribute that another library has replaced since is left alone,
because restoring the original would remove their wrapper as well as ours.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any

__all__ = ["Patches", "is_wrapped"]

_MARK = "_tachograph_wrapper"
_MISSING = object()


def is_wrapped(function: Any) -> bool:
    """Return whether a function is one of our wrappers."""
    return bool(getattr(function, _MARK, False))


class Patches:
    """Patches that are undone together. May be used as a context manager.

    Example:
        >>> with Patches() as patches:
        ...     patches.wrap(torch, "save", lambda original: timed(original))
    """

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def wrap(self, owner: Any, name: str, make: Callable[[Any], Any], *, where_defined: bool = False) -> bool:
        """Replace a function by a wrapper. Return False if it does not exist or is already one of our wrappers.

        Args:
            owner: the module, class or object that has the function.
            name: the name of the attribute.
            make: called with the original; returns the wrapper.
            where_defined: also replace it in the module that defines it. Otherwise pickle, which looks functions up
                there, refuses the wrapper.
        """
        original = getattr(owner, name, None)
        if original is None or is_wrapped(original):
            return False
        wrapper = functools.wraps(original)(make(original))
        setattr(wrapper, _MARK, True)
        home = sys.modules.get(getattr(original, "__module__", None) or "") if where_defined else None
        if home is not None and home is not owner and getattr(home, name, None) is original:
            self.replace(home, name, wrapper)
        self.replace(owner, name, wrapper)
        return True

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute until `undo`."""
        before = vars(owner).get(name, _MISSING)
        setattr(owner, name, value)

        def restore() -> None:
            if vars(owner).get(name) is not value:
                return
            if before is _MISSING:
                delattr(owner, name)  # the original is inherited from a class
            else:
                setattr(owner, name, before)

        self._undo.append(restore)

    def on_undo(self, function: Callable[[], None]) -> None:
        """Call a function on `undo`, in order with the patches: for hooks that have their own way of removal."""
        self._undo.append(function)

    def undo(self) -> None:
        """Restore everything, the last patch first."""
        while self._undo:
            self._undo.pop()()

    def __enter__(self) -> Patches:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.undo()
