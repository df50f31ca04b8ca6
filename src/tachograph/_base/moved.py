"""Names that moved to another module, and work at their old place for one version."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection
from importlib import import_module
from typing import Any

__all__ = ["moved_names"]


def moved_names(module: str, names: Collection[str], new_module: str) -> Callable[[str], Any]:
    """Return a `__getattr__` for a module that finds names at their new place, with a `DeprecationWarning`.

    The new module is imported when such a name is first used. It may be in a higher layer.
    """

    def find(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warnings.warn(f"{module}.{name} is now {new_module}.{name}", DeprecationWarning, stacklevel=2)
        return getattr(import_module(new_module), name)

    return find
