"""Let one module stand in for another; `ImportWatch` calls hooks for modules that were imported."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from tachograph._base.import_watch import Hook, ImportWatch

__all__ = ["Hook", "ImportWatch", "StandIns"]


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
