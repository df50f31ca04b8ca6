"""Python imports this at startup in the program that `tacho run` starts, and in every Python process below it.

It must not change anything that the script sees. So it removes its own folder from `sys.path`, and then imports the
`sitecustomize` module that it shadows, if there is one.
"""

import os
import sys


def _install() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or os.curdir) != here]
    if os.environ.get("TACHO_LAUNCH"):
        try:
            from tachograph.integrations.zero_code._child import install

            install()
        except Exception as fault:  # noqa: BLE001 - the script must run even without telemetry
            _report_fault(f"{type(fault).__name__}: {fault}")


def _report_fault(fault: str) -> None:
    """Tell the launcher why this process is not recorded: another Python may not have Tachograph installed."""
    import json

    try:
        reports = json.loads(os.environ["TACHO_LAUNCH"])["reports"]
        with open(os.path.join(reports, f"fault-{os.getpid()}.json"), "x", encoding="utf-8") as file:
            json.dump({"fault": fault, "python": sys.executable}, file)
    except (OSError, ValueError, LookupError, TypeError):
        pass  # the launcher is gone, or the variable was set by something else


def _import_shadowed() -> None:
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = sys.modules["sitecustomize"] = module_from_spec(spec)
        spec.loader.exec_module(module)


_install()
_import_shadowed()
