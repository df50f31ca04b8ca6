"""The source files of a program: its script, and its modules that lie inside a project."""

from __future__ import annotations

import os
import sys
import sysconfig
import types
from collections.abc import Iterable

__all__ = ["loaded_files", "project_files", "script_file"]

_FOREIGN_FOLDERS = {"site-packages", "dist-packages", "node_modules", "__pycache__"}


def loaded_files() -> list[str]:
    """Return the source files of the modules that this process has loaded, as the modules name them."""
    paths = map(_file_of, list(sys.modules.values()))
    return list(dict.fromkeys(path for path in paths if path and path.endswith((".py", ".pyw"))))


def script_file() -> str | None:
    """Return the file that this process was started with; None in an interactive session."""
    path = _file_of(sys.modules.get("__main__"))
    return os.path.abspath(path) if path else None


def _file_of(module: object) -> str | None:
    """Return the file of a module. Its dict is read past its class, which may load the module on first use."""
    if not isinstance(module, types.ModuleType):
        return None
    try:
        path = object.__getattribute__(module, "__dict__").get("__file__")
    except AttributeError:  # something else that calls itself a module
        return None
    return path if type(path) is str else None


def project_files(files: Iterable[str], roots: Iterable[str]) -> list[str]:
    """Return the files that lie below one of the roots and do not belong to an installed package."""
    roots = [os.path.join(os.path.abspath(root), "") for root in roots]
    package_folders = {sysconfig.get_paths().get(name, "") for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    package_folders |= {sys.prefix} if any(sys.prefix.startswith(root) for root in roots) else set()
    foreign = tuple(os.path.join(path, "") for path in package_folders if path)
    return [
        path
        for path in files
        if any(path.startswith(root) for root in roots)
        and not path.startswith(foreign)
        and not _FOREIGN_FOLDERS.intersection(path.split(os.sep))
    ]
