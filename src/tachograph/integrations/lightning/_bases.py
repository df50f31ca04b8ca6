"""Subclassing Lightning's classes without knowing which Lightning a script uses.

`lightning.pytorch` and `pytorch_lightning` are the same code under two names, and each rejects instances of the other's
classes. So our classes get their Lightning base class when an instance is created. By then the script has imported the
package it trains with; the instance subclasses the class of that package, or of both if both are imported.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from tachograph.exceptions import ConfigError

__all__ = ["LightningSubclass", "imported_packages", "lightning_class", "package_of"]

PACKAGES = ("lightning.pytorch", "pytorch_lightning")

_subclasses: dict[tuple[type, tuple[type, ...]], type] = {}
"""The class made for each of our classes and each set of missing base classes."""


def imported_packages() -> list[str]:
    """Return the Lightning packages that are imported; if there are none, import the first one installed.

    Raises:
        ConfigError: if neither is installed.
    """
    present = [name for name in PACKAGES if name in sys.modules]
    for name in PACKAGES if not present else ():
        try:
            importlib.import_module(name)
        except ImportError:
            continue
        return [name]
    if not present:
        raise ConfigError("neither lightning nor pytorch_lightning is installed: pip install 'tachograph[lightning]'")
    return present


def lightning_class(path: str, package: str) -> type:
    """Return a class of a package: ``lightning_class("loggers.Logger", "pytorch_lightning")``."""
    module, _, name = path.rpartition(".")
    kind: type = getattr(importlib.import_module(f"{package}.{module}" if module else package), name)
    return kind


def package_of(trainer: Any) -> str | None:
    """Return the package that defines a trainer's class."""
    for kind in type(trainer).__mro__:
        for package in PACKAGES:
            if kind.__module__.startswith(f"{package}."):
                return package
    return None


class LightningSubclass:
    """Base of classes whose instances also subclass a class of each imported Lightning package."""

    _lightning_path = ""
    """The Lightning class to subclass, relative to the package."""
    _declared_class: type | None = None
    """The class as it is written, without the Lightning base classes."""

    def __new__(cls, *_args: Any, **_kwargs: Any) -> Any:
        """Create an instance of a class that has all required base classes."""
        return object.__new__(_add_lightning_bases(cls))

    def __reduce__(self) -> Any:
        """Pickle the declared class, because the generated one cannot be found by name."""
        kind = type(self)
        return _new_instance, (kind._declared_class or kind,), self.__getstate__()

    def __getstate__(self) -> dict[str, Any]:
        return dict(vars(self))


def _add_lightning_bases(kind: type[LightningSubclass]) -> type:
    bases = [lightning_class(kind._lightning_path, package) for package in imported_packages()]
    missing = tuple(base for base in bases if not issubclass(kind, base))
    if not missing:
        return kind
    subclass = _subclasses.get((kind, missing))
    if subclass is None:
        attributes = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
        subclass = type(kind.__name__, (kind, *missing), {**attributes, "_declared_class": kind})
        _subclasses[kind, missing] = subclass
    return subclass


def _new_instance(kind: type[LightningSubclass]) -> Any:
    return kind.__new__(kind)
