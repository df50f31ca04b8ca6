"""Cost of an import: modules beyond those of a bare interpreter, and time compared with ``import json``."""

from __future__ import annotations

import msgspec

from benchmarks.child import NOT_INSTALLED, ChildError, last_line, run, temporary_folder
from benchmarks.measure import Spread

__all__ = ["HEAVY", "Imported", "measure_import"]

HEAVY = frozenset({"click", "numpy", "pandas", "rich", "starlette", "torch"})
"""``import tachograph`` may load none of these."""

_CODE = """
import sys
from time import perf_counter
start = perf_counter()
{statement}
took = perf_counter() - start
print()
print(took, *sys.modules)
"""


class Imported(msgspec.Struct, frozen=True):
    """The modules and the time of one import statement."""

    num_modules: int
    heavy: list[str]
    cost_ms: Spread
    ratio: Spread


def measure_import(statement: str, num_rounds: int) -> Imported:
    """Import the module and `json` alternately, each in a fresh interpreter.

    Raises:
        ChildError: if it cannot be imported.
    """
    _, bare = _run("pass")
    modules: set[str] = set()
    costs_s, ratios = [], []
    for index in range(num_rounds + 1):
        json_s, _ = _run("import json")
        cost_s, modules = _run(statement)
        if index:  # the first round reads from disk and compiles
            costs_s.append(cost_s)
            ratios.append(cost_s / json_s)
    added = modules - bare
    return Imported(
        num_modules=len(added),
        heavy=sorted(HEAVY & added),
        cost_ms=Spread.of(1000 * cost_s for cost_s in costs_s),
        ratio=Spread.of(ratios),
    )


def _run(statement: str) -> tuple[float, set[str]]:
    with temporary_folder() as folder:
        done = run(folder, "-c", _CODE.format(statement=statement))
    if done.returncode != 0:
        fault = last_line(done.stderr)
        raise ChildError(NOT_INSTALLED if fault.startswith("ModuleNotFoundError") else fault)
    took, *modules = done.stdout.splitlines()[-1].split()
    return float(took), set(modules)
