"""Call a hook when a module has been imported, without importing it.

`ImportWatch` is a finder at the front of `sys.meta_path`. For a watched module it asks the other finders for the spec
and replaces the spec's loader by a proxy. The proxy restores the real loader before the module is executed, lets it
execute the module, and then calls the hook. So the module looks as if it had been imported without us, and code that
only looks for a spec (`importlib.util.find_spec("torch")`) does not trigger the hook.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["Hook", "ImportWatch"]

Hook = Callable[[ModuleType], None]


class ImportWatch:
    """A finder that delegates to the other finders and calls a hook after a module was executed.

    Args:
        hooks: hooks by module name. Each is called once, with the module.
    """

    def __init__(self, hooks: dict[str, Hook]) -> None:
        self._hooks = hooks

    def install(self) -> None:
        """Start to watch. Call the hooks of modules that are already imported."""
        for name in list(self._hooks):
            module = sys.modules.get(name)
            if module is not None:
                self.call_hook(module, name)
        sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Stop to watch. No hook is called any more."""
        self._hooks.clear()
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec found by the other finders, if the module is watched.

        This is not always followed by an import: many libraries check this way whether torch is installed.
        """
        if fullname not in self._hooks:
            return None
        finders = list(sys.meta_path)
        # The finders before this one have declined. Another watch among them would ask this one again, for ever.
        for finder in finders[finders.index(self) + 1 :] if self in finders else []:
            if not hasattr(finder, "find_spec"):
                continue
            spec: ModuleSpec | None = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    spec.loader = _LoaderProxy(spec.loader, self, fullname)  # type: ignore[assignment] # a loader by duck typing
                return spec
        return None

    def call_hook(self, module: ModuleType, name: str) -> None:
        """Call the hook of a module that was executed, unless it was called before."""
        hook = self._hooks.pop(name, None)
        if hook is not None:
            hook(module)


class _LoaderProxy:
    """Replaces the loader of a module until the module is executed."""

    def __init__(self, loader: Any, watch: ImportWatch, name: str) -> None:
        self._loader = loader
        self._watch = watch
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Let the real loader create the module."""
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Restore the real loader, let it execute the module, and call the hook."""
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._watch.call_hook(module, self._name)
