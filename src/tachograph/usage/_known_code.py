"""Whether a type or a piece of code belongs to Python or to a known package. Only such code may be named.

Everything in Python can be renamed: a class can claim any ``__module__``, be assigned into any module, and that module
can be made up as well. So no claim counts by itself. Nothing is imported or executed to check it.

**Packages.** Known packages are the packages of the app, wherever they are, and well-known ones of the field, but only
where the distribution of their name is installed: a folder ``datasets`` in a user's project does not count.

**Code** belongs to a module if it has the file and the globals of the module.

**Types.** A type belongs to the module that it claims if all of this holds:

1. The module is imported, contains this very type under its name, and comes from the file that a module of this name
   has in the standard library or in a known package.
2. The type is one that only C code can create, or one of `_WITHOUT_STATEMENT`, or the source of the module defines it:
   a class statement or an assignment of its name. Packages may move a type, as numpy moves ``LinAlgError`` from
   ``numpy.linalg._linalg``; then another module of the package that contains the type must define it.
3. None of its methods was written outside of Python and the known packages.

So each name that is sent is a word of the package's own source, or of the list below.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any

from tachograph._base.guard import faults, reraise_from_signal_handler

__all__ = ["known_type_name", "module_of_code", "package_roots"]

_INSTALL_FOLDERS = ("site-packages", "dist-packages")
_OTHER_DISTRIBUTIONS = {"triton": ("pytorch-triton", "pytorch-triton-rocm", "pytorch-triton-xpu")}
"""Distributions that install a package under another name."""
_STANDARD_LIBRARY = os.path.dirname(os.path.realpath(os.__file__))
_MAX_SOURCE_BYTES = 8 << 20

_HEAP_TYPE, _IMMUTABLE_TYPE = 1 << 9, 1 << 8
"""Flags of a type in C. Python code creates only types that are on the heap and can be changed."""

_WITHOUT_STATEMENT = {
    "_csv": ("Error",),
    "_hashlib": ("UnsupportedDigestmodError",),
    "_lzma": ("LZMAError",),
    "_pickle": ("PickleError", "PicklingError", "UnpicklingError"),
    "_queue": ("Empty",),
    "binascii": ("Error", "Incomplete"),
    "builtins": ("ExceptionGroup",),
    "ctypes": ("ArgumentError",),
    "decimal": (
        "Clamped", "ConversionSyntax", "DecimalException", "DivisionByZero", "DivisionImpossible", "DivisionUndefined",
        "FloatOperation", "Inexact", "InvalidContext", "InvalidOperation", "Overflow", "Rounded", "Subnormal",
        "Underflow",
    ),
    "io": ("UnsupportedOperation",),
    "numpy._core._exceptions": ("MemoryError",),
    "safetensors._safetensors_rust": ("SafetensorError",),
    "socket": ("gaierror", "herror"),
    "sqlite3": (
        "DataError", "DatabaseError", "Error", "IntegrityError", "InterfaceError", "InternalError", "NotSupportedError",
        "OperationalError", "ProgrammingError", "Warning",
    ),
    "ssl": (
        "SSLCertVerificationError", "SSLEOFError", "SSLSyscallError", "SSLWantReadError", "SSLWantWriteError",
        "SSLZeroReturnError",
    ),
    "struct": ("error",),
    "termios": ("error",),
    "torch": ("AcceleratorError", "FatalError", "OutOfMemoryError"),
    "torch._C": ("_LinAlgError",),
    "xml.parsers.expat": ("ExpatError",),
    "zlib": ("error",),
}  # fmt: skip
"""Exceptions, by module, that no Python source defines under their name. Nearly all of them are created in C."""


def package_roots(app_packages: Collection[str], other_packages: Collection[str]) -> dict[str, str]:
    """Return the folders of the imported packages, with their names.

    Args:
        app_packages: packages of the app, known wherever they are.
        other_packages: other packages, known only where their distribution is installed.
    """
    roots = {}
    for package in (*app_packages, *other_packages):
        for root in getattr(sys.modules.get(package), "__path__", ()):
            if package in app_packages or _is_installed(package, os.path.realpath(root)):
                roots[os.path.realpath(root)] = package
    return roots


def module_of_code(filename: str, namespace: Mapping[str, Any] | None, roots: Mapping[str, str]) -> str | None:
    """Return the module of some code if it belongs to a known package, else None.

    Args:
        filename: the file that the code claims to come from.
        namespace: the globals of the code.
        roots: folders of the known packages, with their names.
    """
    module = _module_at(filename, roots)
    # Any code can claim to come from a file. Only code that was imported from it has the module's globals.
    for name in (module, "__main__"):
        candidate = sys.modules.get(name) if module is not None and name is not None else None
        if candidate is not None and vars(candidate) is namespace and _is_same_file(_file_of(candidate), filename):
            return module
    return None


def known_type_name(kind: type, roots: Mapping[str, str]) -> str | None:
    """Return the full name of a type if it belongs to Python or a known package, else None."""
    # Not by attribute, which a metaclass may override. A subclass of str could be compared as one text and printed as
    # another.
    claimed_module, name = (type.__dict__[attribute].__get__(kind) for attribute in ("__module__", "__qualname__"))
    if type(claimed_module) is not str or type(name) is not str:
        return None
    module = sys.modules.get(claimed_module)
    if module is None or not _contains(module, name, kind) or _has_unknown_method(kind, roots):
        return None
    flags = type.__dict__["__flags__"].__get__(kind)
    has_source = (
        flags & _HEAP_TYPE and not flags & _IMMUTABLE_TYPE and name not in _WITHOUT_STATEMENT.get(claimed_module, ())
    )
    if not has_source:
        if claimed_module == "builtins":
            return name
        return f"{claimed_module}.{name}" if _is_standard_library(module) or _root_of(_file_of(module), roots) else None
    actual_module = _module_at(_file_of(module), roots, with_standard_library=True)
    if actual_module is None or claimed_module not in (actual_module, "__main__"):
        return None
    is_defined = any(_defines(file, name) for file in _files_with(kind, claimed_module, name, roots))
    return f"{actual_module}.{name}" if is_defined else None


def _files_with(kind: type, claimed_module: str, name: str, roots: Mapping[str, str]) -> Iterator[str]:
    """Return the sources of the module that a type claims, and of the others of the package that contain the type."""
    yield _file_of(sys.modules[claimed_module])
    package = f"{claimed_module.partition('.')[0]}."
    for other, module in list(sys.modules.items()):
        if other.startswith(package) and other != claimed_module and _contains(module, name, kind):
            file = _file_of(module)
            if _module_at(file, roots, with_standard_library=True) == other:
                yield file


def _contains(module: Any, name: str, kind: type) -> bool:
    return isinstance(module, ModuleType) and vars(module).get(name) is kind


@functools.lru_cache(maxsize=256)
def _defines(file: str, name: str) -> bool:
    """Return whether a source file contains a class statement or an assignment for a name."""
    # A search, because parsing a large file takes longer than an error may be delayed. It also finds a statement in a
    # docstring; such a name is no secret of the user either.
    word = re.escape(name.encode())
    statement = rb"(?m)^[ \t]*(?:class[ \t]+%b[ \t]*[(:\[]|%b[ \t]*=(?!=))" % (word, word)
    try:
        with open(file, "rb") as source:
            return re.search(statement, source.read(_MAX_SOURCE_BYTES)) is not None
    except faults(OSError):
        return False


def _has_unknown_method(kind: type, roots: Mapping[str, str]) -> bool:
    """Return whether a method in the body of a class comes from a file outside of Python and the known packages."""
    for member in list(type.__dict__["__dict__"].__get__(kind).values()):
        if isinstance(member, (classmethod, staticmethod)):
            member = member.__func__  # noqa: PLW2901
        for function in (member.fget, member.fset, member.fdel) if isinstance(member, property) else (member,):
            # Generated methods, as in a dataclass, have no file. Their class is found by its statement.
            if isinstance(function, FunctionType) and not function.__code__.co_filename.startswith("<"):
                file = function.__code__.co_filename
                if _module_at(file, roots, with_standard_library=True) is None:
                    return True
    return False


def _module_at(filename: str, roots: Mapping[str, str], *, with_standard_library: bool = False) -> str | None:
    """Return the name of the module that a source file of a known package has when it is imported, else None."""
    if not filename.endswith(".py") or not os.path.isabs(filename):
        return None
    path = os.path.realpath(filename)
    root = _root_of(filename, roots)
    if root is not None:
        inner = f"{os.sep}{roots[root]}{path[len(root) :]}"
    elif with_standard_library and _is_in_standard_library(path):
        inner = path[len(_STANDARD_LIBRARY) :]
    else:
        return None
    return inner[1:].removesuffix(".py").replace(os.sep, ".").removesuffix(".__init__")


def _is_standard_library(module: ModuleType) -> bool:
    """Return whether a module belongs to the standard library, and is not a user's module of the same name."""
    if module.__name__ in sys.builtin_module_names:
        return True
    is_standard_name = module.__name__.partition(".")[0] in sys.stdlib_module_names
    return is_standard_name and _is_in_standard_library(os.path.realpath(_file_of(module)))


def _is_in_standard_library(path: str) -> bool:
    return path.startswith(_STANDARD_LIBRARY + os.sep) and not any(
        f"{os.sep}{folder}{os.sep}" in path for folder in _INSTALL_FOLDERS
    )


def _is_same_file(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def _file_of(module: ModuleType) -> str:
    file = getattr(module, "__file__", None)
    return file if isinstance(file, str) else ""


def _root_of(filename: str, roots: Mapping[str, str]) -> str | None:
    """Return the folder among the roots that contains a file, else None."""
    if not os.path.isabs(filename):
        return None
    folder = os.path.dirname(os.path.realpath(filename))
    while folder not in roots and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    return folder if folder in roots else None


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
        except Exception as error:  # noqa: BLE001 - not installed, or with broken metadata
            reraise_from_signal_handler(error)
            continue
    return False
