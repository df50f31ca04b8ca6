"""The properties of an ``error`` event: types, and places in known packages. Never the text of an exception.

Privacy rules:

* The content of an exception is never read: no message, notes, arguments or attributes, no locals, no source lines.
* A type is named only if it is found under its name in Python itself or in a known package. Any other one is a
  ``user exception``, with its nearest known base class. An exception can claim any ``__module__`` and ``__qualname__``,
  so the module is looked up in `sys.modules` and must contain this very type.
* A frame is named only if its code belongs to a known package. All others are ``other code``; consecutive ones are
  merged. Code can claim any file name, so its globals must be those of the module imported from that file.
* Known packages are those of the app, wherever they are, and well-known ones of the field, but only where the
  distribution of their name is installed: a folder ``datasets`` in a user's project does not count.

`KeyboardInterrupt`, `SystemExit`, `GeneratorExit`, the end of an iterator and cancellation are decisions, not failures,
and are never reported.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import os
import sys
from collections.abc import Callable, Collection, Mapping
from types import ModuleType, TracebackType
from typing import Any

from tachograph._base.decorator import wrap_calls

__all__ = ["error_properties", "is_failure"]

_USER_EXCEPTION = "user exception"
_OTHER_CODE = "other code"
_MAX_CAUSES = 8
_MAX_FRAMES = 40
_INSTALL_FOLDERS = ("site-packages", "dist-packages")
_OTHER_DISTRIBUTIONS = {"triton": ("pytorch-triton", "pytorch-triton-rocm", "pytorch-triton-xpu")}
"""Distributions that install a package under another name."""
_STANDARD_LIBRARY = os.path.dirname(os.path.realpath(os.__file__))


def is_failure(error: BaseException) -> bool:
    """Return whether an exception is a failure, and not the intended end of a program, an iterator or a task."""
    cancelled = getattr(sys.modules.get("concurrent.futures"), "CancelledError", StopIteration)
    return isinstance(error, Exception) and not isinstance(error, (StopIteration, StopAsyncIteration, cancelled))


def error_properties(
    error: BaseException, own: Collection[str], known: Collection[str], function: Callable[..., Any] | None = None
) -> dict[str, Any]:
    """Return the properties of the event for an exception.

    Args:
        error: the exception.
        own: packages of the app, known wherever they are.
        known: other packages, known only where their distribution is installed.
        function: the watched function that the exception left, if any.
    """
    roots = _roots(own, known)
    kind, base = _type_names(error, roots)
    properties: dict[str, Any] = {"type": kind, "base": base, "frames": _frames(error.__traceback__, roots)}
    properties["causes"] = [_type_names(cause, roots)[0] for cause in _causes(error)]
    members = getattr(error, "exceptions", None) if _is_group(error) else None
    properties["members"] = [_type_names(member, roots)[0] for member in (members or ())[:_MAX_CAUSES]]
    inner = inspect.unwrap(function) if function is not None else None
    code = getattr(inner, "__code__", None)
    if code is not None and (module := _module_of(code.co_filename, getattr(inner, "__globals__", None), roots)):
        properties["function"] = f"{module}.{code.co_name}"
    return {name: value for name, value in properties.items() if value}


def _type_names(error: BaseException, roots: Mapping[str, str]) -> tuple[str, str | None]:
    """Return the name of an exception's type, and for a user exception that of its nearest known base class."""
    names = [_known_name(kind, roots) for kind in type(error).__mro__]
    known = next((name for name in names if name), None)
    return (names[0], None) if names[0] else (_USER_EXCEPTION, known)


def _known_name(kind: type, roots: Mapping[str, str]) -> str | None:
    """Return the name of a type if it is found under that name in Python or in a known package, else None."""
    module, name = str(kind.__module__), str(kind.__qualname__)  # a metaclass may return anything
    found = sys.modules.get(module)
    if found is None or vars(found).get(name) is not kind:
        return None
    if module == "builtins":
        return name
    return f"{module}.{name}" if _is_standard_library(found) or _root_of(_file_of(found), roots) else None


def _is_standard_library(module: ModuleType) -> bool:
    """Return whether a module belongs to the standard library, and is not a user's module of the same name."""
    if module.__name__ in sys.builtin_module_names:
        return True
    file = os.path.realpath(_file_of(module))
    is_in_folder = file.startswith(_STANDARD_LIBRARY + os.sep) and not any(
        f"{os.sep}{name}{os.sep}" in file for name in _INSTALL_FOLDERS
    )
    return is_in_folder and module.__name__.partition(".")[0] in sys.stdlib_module_names


def _file_of(module: ModuleType) -> str:
    file = getattr(module, "__file__", None)
    return file if isinstance(file, str) else ""


def _causes(error: BaseException) -> list[BaseException]:
    causes: list[BaseException] = []
    seen = {id(error)}  # causes may form a cycle
    while len(causes) < _MAX_CAUSES:
        cause = error.__cause__
        if cause is None and not error.__suppress_context__:
            cause = error.__context__
        if cause is None or id(cause) in seen:
            break
        seen.add(id(cause))
        causes.append(cause)
        error = cause
    return causes


def _is_group(error: BaseException) -> bool:
    group = getattr(builtins, "BaseExceptionGroup", None)  # since 3.11
    return group is not None and isinstance(error, group)


def _frames(trace: TracebackType | None, roots: Mapping[str, str]) -> list[dict[str, Any]]:
    frames: list[dict[str, Any]] = []
    modules: dict[tuple[str, int], str | None] = {}  # cached: a deep recursion has thousands of frames of one module
    while trace is not None:
        frame, line, trace = trace.tb_frame, trace.tb_lineno, trace.tb_next
        code = frame.f_code
        if code.co_filename == wrap_calls.__code__.co_filename:
            continue  # the wrapper around every watched function
        key = code.co_filename, id(frame.f_globals)
        if key not in modules:
            modules[key] = _module_of(code.co_filename, frame.f_globals, roots)
        module = modules[key]
        if module is not None:
            frames.append({"module": module, "function": code.co_name, "line": line})
        elif not frames or frames[-1]["module"] != _OTHER_CODE:
            frames.append({"module": _OTHER_CODE})
    return frames[-_MAX_FRAMES:]


def _module_of(filename: str, namespace: Mapping[str, Any] | None, roots: Mapping[str, str]) -> str | None:
    """Return the module of some code if it belongs to a known package, else None.

    Args:
        filename: the file that the code claims to come from.
        namespace: the globals of the code.
        roots: folders of the known packages, with their names.
    """
    path = os.path.realpath(filename)
    root = _root_of(filename, roots)
    if root is None or not path.endswith(".py"):
        return None
    inner = path[len(root) : -len(".py")].replace(os.sep, ".")
    module = f"{roots[root]}{inner}".removesuffix(".__init__")
    # Any code can claim to come from a file. Only code that was imported from it has the module's globals.
    for name in (module, "__main__"):
        found = sys.modules.get(name)
        if found is not None and vars(found) is namespace and os.path.realpath(_file_of(found)) == path:
            return module
    return None


def _root_of(filename: str, roots: Mapping[str, str]) -> str | None:
    """Return the folder among the roots that contains a file, else None."""
    if not os.path.isabs(filename):
        return None
    folder = os.path.dirname(os.path.realpath(filename))
    while folder not in roots and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    return folder if folder in roots else None


def _roots(own: Collection[str], known: Collection[str]) -> dict[str, str]:
    """Return the folders of the imported packages, with their names."""
    roots = {}
    for package in (*own, *known):
        for root in getattr(sys.modules.get(package), "__path__", ()):
            if package in own or _is_installed(package, os.path.realpath(root)):
                roots[os.path.realpath(root)] = package
    return roots


@functools.cache
def _is_installed(package: str, root: str) -> bool:
    """Return whether the distribution of a package's name installed a folder, and not the user."""
    from importlib.metadata import distribution

    if os.path.basename(os.path.dirname(root)) not in _INSTALL_FOLDERS:
        return False
    for name in (package, *_OTHER_DISTRIBUTIONS.get(package, ())):
        try:
            if os.path.realpath(str(distribution(name).locate_file(package))) == root:
                return True
        except Exception:  # noqa: BLE001, S112 - not installed, or with broken metadata
            continue
    return False
