"""Call a hook when a module has been imported, without importing it; and let one module stand in for another.

`ImportWatch` is a finder at the front of `sys.meta_path`. For a watched module it asks the other finders for the spec
and replaces the spec's loader by a proxy. The proxy restores the real loader before the module is executed, lets it
execute the module, and then calls the hook. So the module looks as if it had been imported without us, and code that
only looks for a spec (`importlib.util.find_spec("torch")`) does not trigger the hook.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["Hook", "ImportWatch", "StandIns"]

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

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec found by the other finders, if the module is watched.

        This is not always followed by an import: many libraries check this way whether torch is installed.
        """
        if fullname not in self._hooks:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
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


class StandIns:
    """A finder that gives the script `tachograph.NAME` when it imports NAME, and so for the modules inside it.

    Args:
        names: the names of the modules.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(names)
        self._specs: dict[str, ModuleSpec | None] = {}

    def install(self) -> None:
        """Start to replace the modules. One that is imported already stays."""
        sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec whose loader returns our module."""
        if fullname.partition(".")[0] not in self._names:
            return None
        from importlib.util import find_spec

        if find_spec(f"tachograph.{fullname}") is None:
            raise ModuleNotFoundError(f"No module named {fullname!r} in its stand-in from Tachograph", name=fullname)
        return ModuleSpec(fullname, self)  # type: ignore[arg-type] # a loader by duck typing

    def find_distributions(self, context: Any) -> Iterator[Any]:
        """Yield the metadata of a package that is not installed: libraries ask for its version before they use it."""
        if context.name in self._names:
            from importlib import import_module
            from importlib.metadata import Distribution

            version = import_module(f"tachograph.{context.name}").__version__
            text = f"Metadata-Version: 2.1\nName: {context.name}\nVersion: {version}\n"

            class StandInDistribution(Distribution):
                def read_text(self, filename: str) -> str | None:
                    return text if filename == "METADATA" else None

                def locate_file(self, path: Any) -> Any:
                    return path

            yield StandInDistribution()

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return our module, which is imported under its own name, too."""
        from importlib import import_module

        module = import_module(f"tachograph.{spec.name}")
        self._specs[spec.name] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Restore the spec, which the import has replaced."""
        if module.__spec__ is not None:
            module.__spec__ = self._specs.pop(module.__spec__.name)
