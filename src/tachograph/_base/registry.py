"""Looks up extensions by name: built-in ones, and extensions that other packages add through entry points.

A package adds a sink, an importer or a rule by declaring an entry point in its own `pyproject.toml`:

    [project.entry-points."tachograph.sinks"]
    clearml = "clearml_tachograph:ClearMLSink"

An extension is imported when it is first used, not before. A built-in name always wins, so installing a package cannot
replace a built-in extension.

Every `init` needs the names of all rules, and hardly any environment has extensions. Importing `importlib.metadata`
costs about 50 ms, so the metadata files are first searched for the name of the group.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Any

from tachograph._base.guard import faults, suppress
from tachograph.exceptions import ConfigError, did_you_mean

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["Registry"]


class Registry:
    """The extensions of one kind, by name.

    Args:
        kind: the word for one of them in messages, such as `sink`.
        group: the entry-point group, such as `tachograph.sinks`.
        built_in: the built-in extensions, each as `module:attribute`.
    """

    def __init__(self, kind: str, group: str, built_in: Mapping[str, str]) -> None:
        self.kind = kind
        self.group = group
        self.built_in = dict(built_in)

    def names(self) -> list[str]:
        """Return the names of all extensions: built-in ones first, then installed ones in alphabetical order."""
        return [*self.built_in, *sorted(self._entry_points())]

    def packages(self) -> dict[str, str]:
        """Return the packages that provide the installed extensions, by the name of the extension."""
        return {
            name: ", ".join(sorted(map(_package_name, points))) for name, points in sorted(self._entry_points().items())
        }

    def load(self, name: str) -> Any:
        """Import an extension and return it.

        Raises:
            ConfigError: if the name is unknown or ambiguous, or the import fails.
        """
        if name in self.built_in:
            module, _, attribute = self.built_in[name].partition(":")
            try:
                return getattr(import_module(module), attribute)
            except faults(ImportError) as error:
                raise ConfigError(
                    f"{self.kind} {name!r} needs a package that is not installed ({error}): "
                    f"pip install 'tachograph[{name}]'"
                ) from error
        entry_points = self._entry_points()
        if name not in entry_points:
            names = [*self.built_in, *sorted(entry_points)]
            hint = did_you_mean(name, names) or "."
            raise ConfigError(f"unknown {self.kind} {name!r}{hint} Available: {', '.join(names)}")
        packages = ", ".join(sorted(_package_name(point) for point in entry_points[name]))
        if len(entry_points[name]) > 1:
            raise ConfigError(f"several packages provide the {self.kind} {name!r}: {packages}; uninstall all but one")
        try:
            return entry_points[name][0].load()
        except Exception as error:  # third-party code may raise anything while it is imported
            raise ConfigError(
                f"{self.kind} {name!r} of package {packages!r} cannot be loaded: {type(error).__name__}: {error}"
            ) from error

    def _entry_points(self) -> dict[str, list[EntryPoint]]:
        if not _is_declared(self.group):
            return {}
        from importlib.metadata import entry_points

        by_name: dict[str, list[EntryPoint]] = {}
        for point in entry_points(group=self.group):
            if point.name not in self.built_in:
                by_name.setdefault(point.name, []).append(point)
        return by_name


def _package_name(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.value


def _is_declared(group: str) -> bool:
    """Return whether an installed package may declare entry points of a group; reads files, imports nothing."""
    finders = (finder for finder in sys.meta_path if finder is not PathFinder)
    if any(hasattr(finder, "find_distributions") for finder in finders):
        return True  # packages that are not in a folder: let importlib.metadata ask the finder
    for folder in sys.path:
        if os.path.isfile(folder) or folder.endswith(".egg"):
            return True  # an archive: let importlib.metadata search it
        try:
            names = os.listdir(folder or ".")
        except faults(OSError):
            continue
        for name in names:
            if name.endswith((".dist-info", ".egg-info")):
                # Most packages declare no entry points and have no such file.
                with suppress(OSError), open(os.path.join(folder, name, "entry_points.txt"), "rb") as file:
                    if group.encode() in file.read():
                        return True
    return False
