"""Axolotl: a plugin that records its trainings.

    plugins:
      - tachograph.integrations.axolotl.TachographPlugin

Its classes need Axolotl and pydantic, which are imported when a name is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tachograph.integrations.axolotl._args import TachographArgs, TachographSwanLabArgs
    from tachograph.integrations.axolotl._plugin import TachographPlugin

__all__ = ["TachographArgs", "TachographPlugin", "TachographSwanLabArgs"]

_MODULES = {"TachographArgs": "_args", "TachographSwanLabArgs": "_args", "TachographPlugin": "_plugin"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
