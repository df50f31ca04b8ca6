"""What importing costs: modules beyond those of a bare interpreter, and time against ``import json``."""

from __future__ import annotations

import subprocess
import sys
import tempfile

import msgspec

from benchmarks._children import NOT_INSTALLED, ChildError, child_environment
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
    with tempfile.TemporaryDirectory(prefix="tachograph-bench-") as folder:
        done = subprocess.run(
            [sys.executable, "-c", _CODE.format(statement=statement)],
            cwd=folder,
            env=child_environment(folder),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    if done.returncode != 0:
        last_line = (done.stderr.strip() or "no message").splitlines()[-1]
        raise ChildError(NOT_INSTALLED if last_line.startswith("ModuleNotFoundError") else last_line)
    took, *modules = done.stdout.splitlines()[-1].split()
    return float(took), set(modules)
