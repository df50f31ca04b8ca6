"""Tells when a module has been imported, without importing it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["Hook", "ImportWatch"]

Hook = Callable[[ModuleType], None]


class ImportWatch:
    """A finder that finds nothing itself: it lets the others find, and adds a call behind the execution of a module.

    Args:
        hooks: what to call with a module, by its name, right after it was executed.
    """

    def __init__(self, hooks: dict[str, Hook]) -> None:
        self._hooks = hooks

    def install(self) -> None:
        """Begin to watch; modules that are there already are told of at once."""
        for name in list(self._hooks):
            module = sys.modules.get(name)
            if module is not None:
                self.tell(module, name)
        sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec that the other finders have, if the module is watched for.

        It may be asked for without an import: many libraries look this way whether torch is installed.
        """
        if fullname not in self._hooks:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec: ModuleSpec | None = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(spec.loader, self, fullname)  # type: ignore[assignment] # it does what is asked of one
                return spec
        return None

    def tell(self, module: ModuleType, name: str) -> None:
        """Hear that a module was executed; of each, the first time counts."""
        hook = self._hooks.pop(name, None)
        if hook is not None:
            hook(module)


class _Loader:
    """Stands in for a module's loader until the module is executed, and puts it back before."""

    def __init__(self, loader: Any, watch: ImportWatch, name: str) -> None:
        self._loader = loader
        self._watch = watch
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Let the loader make the module."""
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Let the loader execute the module, then tell of it."""
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._watch.tell(module, self._name)
