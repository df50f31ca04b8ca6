"""Python imports this at its start, in the program that `tacho run` started and in all that this one starts.

It leaves no trace on `sys.path`, and another `sitecustomize`, which it hides, is imported in its turn.
"""

import os
import sys


def _begin() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or os.curdir) != here]
    if os.environ.get("TACHO_LAUNCH"):
        try:
            from tachograph.integrations.zero_code._child import install

            install()
        except Exception as fault:  # noqa: BLE001 - a script runs without telemetry rather than not at all
            _tell(f"{type(fault).__name__}: {fault}")


def _tell(fault: str) -> None:
    """Tell the launcher why nothing can be recorded here, as another Python may have no Tachograph."""
    import json

    try:
        letters = json.loads(os.environ["TACHO_LAUNCH"])["letters"]
        with open(os.path.join(letters, f"fault-{os.getpid()}.json"), "w", encoding="utf-8") as file:
            json.dump({"fault": fault, "python": sys.executable}, file)
    except (OSError, ValueError, LookupError, TypeError):
        pass  # the launcher is gone, or the variable is not its


def _import_hidden() -> None:
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = sys.modules["sitecustomize"] = module_from_spec(spec)
        spec.loader.exec_module(module)


_begin()
_import_hidden()
