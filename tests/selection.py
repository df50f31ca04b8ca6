"""Which test files need a browser, a database, a framework or another large package; `pytest --fast` leaves them out.

A file needs such a package if it names it: in an import, in `importorskip`, in `preload=…`, or in a program that it
starts. The same holds for each module of `tests` that it imports and for each `conftest.py` that applies to it. The
list thus follows from the files themselves.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

from tests.preloaded import MODULES

__all__ = ["is_heavy"]

_ROOT = Path(__file__).parent
_SHARED = (_ROOT / "conftest.py", _ROOT / "preloaded.py")
"""Modules of all tests; a test that uses their parts for a package names it itself."""
_PACKAGES = (
    "accelerate aim axolotl chdb datasets keras lightning lm_eval mlflow peft playwright pytorch_lightning ray "
    "schemathesis swanlab tensorboard torch trackio transformers trl wandb"
).split()
_HEAVY_PRELOADS = [name for name, modules in MODULES.items() if any(m.partition(".")[0] in _PACKAGES for m in modules)]
_names = "|".join(_PACKAGES)
_NAMED = re.compile(
    rf"(?:^|[;'\"(])[ \t]*(?:import|from)[ \t]+(?:{_names})\b"
    rf"|\b(?:ClickHouse|Chdb)Server\b"
    rf"|importorskip\(\s*[\"'](?:{_names})\b"
    rf"|(?:preload=|preloaded\()[\"'](?:{'|'.join(_HEAVY_PRELOADS)})[\"']",
    re.MULTILINE,
)
_OWN_IMPORT = re.compile(r"^[ \t]*from (tests(?:\.\w+)*) import ([\w, ]+)", re.MULTILINE)


def is_heavy(path: Path) -> bool:
    """Return whether the tests of a file need a large package."""
    conftests = (folder / "conftest.py" for folder in path.parents if _ROOT in folder.parents)
    return any(map(_names_package, (path, *conftests)))


@functools.cache
def _names_package(path: Path) -> bool:
    if not path.is_file() or path in _SHARED:
        return False
    source = path.read_text(encoding="utf-8")
    if _NAMED.search(source):
        return True
    modules = {
        name for package, names in _OWN_IMPORT.findall(source) for name in (package, *_submodules(package, names))
    }
    return any(_names_package(_ROOT.parent.joinpath(*name.split(".")).with_suffix(".py")) for name in sorted(modules))


def _submodules(package: str, names: str) -> list[str]:
    return [f"{package}.{name.split()[0]}" for name in names.split(",") if name.strip()]
