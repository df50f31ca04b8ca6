"""Which Lightning a script uses: `lightning.pytorch`, `pytorch_lightning`, or both.

The two are the same code under two names, and neither takes the other's classes for its own. So a class of ours gets
its base when an object of it is made, which is when the script has imported what it trains with: it is then of that
package's class, and of both packages' classes if both are imported.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from tachograph.exceptions import ConfigError

__all__ = ["Joining", "lightning_class", "package_of"]

PACKAGES = ("lightning.pytorch", "pytorch_lightning")

_joined: dict[tuple[type, tuple[type, ...]], type] = {}


def packages() -> list[str]:
    """Return the packages that are imported; if none is, import the first that is installed.

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
    found: type = getattr(importlib.import_module(f"{package}.{module}" if module else package), name)
    return found


def package_of(trainer: Any) -> str | None:
    """Return the package that a trainer is of."""
    for kind in type(trainer).__mro__:
        for package in PACKAGES:
            if kind.__module__.startswith(f"{package}."):
                return package
    return None


class Joining:
    """A class whose objects are also of Lightning's class, that of each package which is imported when one is made."""

    _lightning_path = ""
    _before_joining: type | None = None

    def __new__(cls, *_arguments: Any, **_named: Any) -> Any:
        """Make an object of a class that has all the bases it needs."""
        return object.__new__(_join(cls))

    def __reduce__(self) -> Any:
        """Let it be sent to another process, which makes the class anew."""
        kind = type(self)
        return _revive, (kind._before_joining or kind,), self.__getstate__()

    def __getstate__(self) -> dict[str, Any]:
        return dict(vars(self))


def _join(kind: type[Joining]) -> type:
    bases = [lightning_class(kind._lightning_path, package) for package in packages()]
    missing = tuple(base for base in bases if not issubclass(kind, base))
    if not missing:
        return kind
    made = _joined.get((kind, missing))
    if made is None:
        own = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
        made = type(kind.__name__, (kind, *missing), {**own, "_before_joining": kind})
        _joined[kind, missing] = made
    return made


def _revive(kind: type[Joining]) -> Any:
    return kind.__new__(kind)
