"""The source files of a program: its script, and its modules that lie inside a project."""

from __future__ import annotations

import os
import sys
import sysconfig
import types
from collections.abc import Iterable

__all__ = ["loaded_files", "project_files"]

_FOREIGN_FOLDERS = {"site-packages", "dist-packages", "node_modules", "__pycache__"}


def loaded_files() -> list[str]:
    """Return the files of the modules that this process has loaded, the script first.

    The dict of a module is read past its class: a module that is loaded on first use must not be loaded by this.
    """
    files: dict[str, None] = {}
    for name in ("__main__", *list(sys.modules)):
        module = sys.modules.get(name)
        if not isinstance(module, types.ModuleType):
            continue
        path = object.__getattribute__(module, "__dict__").get("__file__")
        if type(path) is str and path.endswith((".py", ".pyw")):
            files[os.path.abspath(path)] = None
        elif type(path) is str and name == "__main__":
            files[os.path.abspath(path)] = None  # a script may have any name
    return list(files)


def project_files(files: Iterable[str], roots: Iterable[str]) -> list[str]:
    """Return those files that lie below one of the roots and do not belong to an installed package."""
    roots = [os.path.join(os.path.abspath(root), "") for root in roots]
    installed = {sysconfig.get_paths().get(name, "") for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    installed |= {sys.prefix} if any(sys.prefix.startswith(root) for root in roots) else set()
    foreign = tuple(os.path.join(path, "") for path in installed if path)
    return [
        path
        for path in files
        if any(path.startswith(root) for root in roots)
        and not path.startswith(foreign)
        and not _FOREIGN_FOLDERS.intersection(path.split(os.sep))
    ]
