"""What importing costs: modules beyond those of a bare interpreter, and time against ``import json``."""

from __future__ import annotations

import msgspec

from benchmarks._children import NOT_INSTALLED, ChildError, last_line, run, temporary_folder
from benchmarks._measure import Spread

__all__ = ["HEAVY", "Imported", "measure_import"]

HEAVY = frozenset({"click", "numpy", "pandas", "rich", "starlette", "torch"})
"""None of these may come with ``import tachograph``."""

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
    """What one import statement brings in."""

    num_modules: int
    heavy: list[str]
    cost_ms: Spread
    ratio: Spread


def measure_import(statement: str, num_rounds: int) -> Imported:
    """Take turns importing this and `json`, each in a fresh interpreter.

    Raises:
        ChildError: if it cannot be imported.
    """
    _, bare = _run("pass")
    modules: set[str] = set()
    costs_s, ratios = [], []
    for index in range(num_rounds + 1):
        json_s, _ = _run("import json")
        cost_s, modules = _run(statement)
        if index:  # the first round reads from the disk and compiles
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
