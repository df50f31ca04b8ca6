"""Parts that are looked up by name: ours, and those that other packages add through entry points.

A package adds a sink, an importer or a rule by declaring an entry point in its own `pyproject.toml`:

    [project.entry-points."tachograph.sinks"]
    clearml = "clearml_tachograph:ClearMLSink"

Nothing is imported before it is asked for. A name of ours always wins, so that installing a package cannot replace a
built-in part.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from tachograph.exceptions import ConfigError, did_you_mean

__all__ = ["Registry"]


class Registry:
    """The parts of one kind, by name.

    Args:
        kind: what one of them is called in messages, such as `sink`.
        group: the entry-point group, such as `tachograph.sinks`.
        built_in: our own parts, each as `module:attribute`.
    """

    def __init__(self, kind: str, group: str, built_in: Mapping[str, str]) -> None:
        self.kind = kind
        self.group = group
        self.built_in = dict(built_in)

    def names(self) -> list[str]:
        """Return the names of all parts, built-in ones first."""
        return [*self.built_in, *sorted(self._installed())]

    def load(self, name: str) -> Any:
        """Import a part and return it.

        Raises:
            ConfigError: if there is no such part, or a package that it needs is not installed.
        """
        if name in self.built_in:
            module, _, attribute = self.built_in[name].partition(":")
            try:
                return getattr(import_module(module), attribute)
            except ImportError as error:
                raise ConfigError(
                    f"{self.kind} {name!r} needs a package that is not installed ({error}): "
                    f"pip install 'tachograph[{name}]'"
                ) from error
        installed = self._installed()
        if name not in installed:
            known = [*self.built_in, *sorted(installed)]
            raise ConfigError(f"unknown {self.kind} {name!r}{did_you_mean(name, known)}; available: {', '.join(known)}")
        point = installed[name]
        package = point.dist.name if point.dist is not None else point.value
        try:
            return point.load()
        except Exception as error:  # a package of somebody else: whatever its import raises
            raise ConfigError(
                f"{self.kind} {name!r} of package {package!r} cannot be loaded: {type(error).__name__}: {error}"
            ) from error

    def _installed(self) -> dict[str, EntryPoint]:
        found = {point.name: point for point in entry_points(group=self.group)}
        return {name: point for name, point in found.items() if name not in self.built_in}
