"""Record an unmodified script: `tacho run -- python train.py`.

1. The launcher (`_launch`) puts the folder `bootstrap` first on the script's `PYTHONPATH` and starts it. Python imports
   a module named `sitecustomize` at startup, so it imports `bootstrap/sitecustomize.py`.
2. That calls `_child.install`, which only installs an import watch (`_imports`). Torch, transformers and Lightning are
   instrumented when the script imports them. A package that the script does not import costs nothing.
3. Output passes through the launcher (`_output`), which records it (`_output_recorder`) and keeps the last lines.
4. When the program has ended, the launcher adds its exit code and last output to the run. Processes tell the launcher
   about their run through small files (`_launch_spec`).

Every Python process of the program imports this package at startup. The launcher's own imports are therefore lazy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tachograph.integrations.zero_code._launch import LaunchResult, check_command, launch
    from tachograph.integrations.zero_code._launch_spec import LaunchSpec

__all__ = ["LaunchResult", "LaunchSpec", "check_command", "launch"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{'_launch_spec' if name == 'LaunchSpec' else '_launch'}"), name)
