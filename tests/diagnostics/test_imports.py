"""The import graph of the package."""

from __future__ import annotations

import ast
import graphlib
from pathlib import Path

import tachograph.diagnostics

FOLDER = Path(tachograph.diagnostics.__file__).parent
PACKAGE = "tachograph.diagnostics"


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    """Imports for type checking count too: a module that needs them is not independent."""
    graph: dict[str, set[str]] = {}
    for path in FOLDER.rglob("*.py"):
        module = ".".join((PACKAGE, *path.relative_to(FOLDER).with_suffix("").parts)).removesuffix(".__init__")
        imports = {
            node.module
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(PACKAGE)
        }
        graph[module] = imports
    order = list(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError
    assert (
        order.index(f"{PACKAGE}._alert_tracker") < order.index(f"{PACKAGE}._rule") < order.index(f"{PACKAGE}._engine")
    )
