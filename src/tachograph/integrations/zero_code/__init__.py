"""Recording a script that says nothing of telemetry: `tacho run -- python train.py`.

The launcher puts `bootstrap` in front of the script's `PYTHONPATH`, where Python looks for `sitecustomize`. That only
sets a watch on imports; torch, transformers and Lightning are instrumented when the script imports them, and what it
does not import costs nothing. When the program has ended, the launcher adds how it ended and what it printed last.

This package is imported at the start of every Python process of the program: what the launcher needs is imported when
it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tachograph.integrations.zero_code._launch import Launch, launch
    from tachograph.integrations.zero_code._launch_spec import Order

__all__ = ["Launch", "Order", "launch"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{'_launch_spec' if name == 'Order' else '_launch'}"), name)
