"""Errors of watched functions: which types, and where in the code of known packages. Never what they say.

`KeyboardInterrupt`, `SystemExit`, `GeneratorExit`, the end of an iterator and whatever was cancelled are decisions, not
failures: none is reported.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import inspect
import os
import sys
from collections.abc import Callable, Collection, Mapping
from contextvars import ContextVar
from types import ModuleType, TracebackType
from typing import Any, TypeVar, overload

from tachograph._base.decorator import wrap_calls
from tachograph.exceptions import ConfigError
from tachograph.usage._manager import manager_of
from tachograph.usage._quiet import quiet

__all__ = ["error_properties", "is_failure", "send_errors"]

Function = TypeVar("Function", bound=Callable[..., Any])

_USER_EXCEPTION = "user exception"
_OTHER_CODE = "other code"
_MOST_CAUSES = 8
_MOST_FRAMES = 40
_MARK = "__tachograph_reported__"
_GENERATORS = object()
"""The chain of generators that nothing watched has called."""
_INSTALLED = ("site-packages", "dist-packages")
_OTHER_NAMES = {"triton": ("pytorch-triton", "pytorch-triton-rocm", "pytorch-triton-xpu")}
"""Distributions that install a package of another name."""
_STANDARD_LIBRARY = os.path.dirname(os.path.realpath(os.__file__))

_chain: ContextVar[object | None] = ContextVar("tachograph_usage_chain", default=None)
"""What all watched functions that are under way, one inside the other, share."""


@overload
def send_errors(function: Function) -> Function: ...
@overload
def send_errors(*, app: str) -> Callable[[Function], Function]: ...
def send_errors(function: Function | None = None, *, app: str | None = None) -> Any:
    """Report what a function raises, and let it go on as if nobody had looked: ``@send_errors``.

    An exception that passes several watched functions is reported by the innermost. Until an app is configured, and
    where usage telemetry is off, the function is simply called.

    Args:
        function: any function, method, coroutine or generator.
        app: the app that it belongs to, where a process has several and its package does not tell.
    """
    if function is None:
        return lambda later: _watched(later, app)
    return _watched(function, app)


def _watched(function: Any, app: str | None) -> Any:
    if isinstance(function, (classmethod, staticmethod)):
        return type(function)(_watched(function.__func__, app))
    if not callable(function) or isinstance(function, type):
        raise ConfigError(f"@send_errors is for functions and methods, not for {function!r}; put it on each of its own")
    is_generator = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
    return wrap_calls(function, lambda _arguments: _Watch(function, app, is_generator=is_generator))


class _Watch:
    """Around one call."""

    __slots__ = ("_app", "_chain", "_function", "_is_generator")

    def __init__(self, function: Callable[..., Any], app: str | None, *, is_generator: bool) -> None:
        self._function = function
        self._app = app
        self._is_generator = is_generator
        self._chain: object | None = None

    def __enter__(self) -> None:
        # A generator begins no chain: while it rests, its caller would believe to be inside of it.
        if not self._is_generator and _chain.get() is None:
            self._chain = object()
            _chain.set(self._chain)

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        chain = _chain.get()
        if self._chain is not None:
            _chain.set(None)
        if error is not None and is_failure(error):
            with contextlib.suppress(RecursionError), quiet("reporting an error"):
                self._report(error, chain or _GENERATORS)

    def _report(self, error: BaseException, chain: object) -> None:
        if isinstance(error, RecursionError) and self._chain is None and chain is not _GENERATORS:
            return  # there is no room to tell of it here; the outermost has some
        # A mark, and no list of them: that would keep alive all that the frames of each refer to.
        marks = vars(error)
        mark = marks.get(_MARK) if self._chain is None else marks.pop(_MARK, None)
        if mark is chain:
            return
        manager = manager_of(self._function, self._app)
        if manager is not None and manager.enabled:
            if self._chain is None:
                marks[_MARK] = chain
            manager.send_error(error, self._function)


def is_failure(error: BaseException) -> bool:
    """Tell whether an exception is a failure, and not how a program, an iterator or a task is meant to end."""
    cancelled = getattr(sys.modules.get("concurrent.futures"), "CancelledError", StopIteration)
    return isinstance(error, Exception) and not isinstance(error, (StopIteration, StopAsyncIteration, cancelled))


def error_properties(
    error: BaseException, own: Collection[str], known: Collection[str], function: Callable[..., Any] | None = None
) -> dict[str, Any]:
    """Return what is told of an exception.

    Args:
        error: the exception.
        own: packages of the app, wherever they lie.
        known: packages that are known if they were installed, and not somebody's own of that name.
        function: the function that let it pass, if it is to be named.
    """
    roots = _roots(own, known)
    kind, base = _type_of(error, roots)
    properties: dict[str, Any] = {"type": kind, "base": base, "frames": _frames(error.__traceback__, roots)}
    properties["causes"] = [_type_of(cause, roots)[0] for cause in _causes(error)]
    members = getattr(error, "exceptions", None) if _is_group(error) else None
    properties["members"] = [_type_of(member, roots)[0] for member in (members or ())[:_MOST_CAUSES]]
    inner = inspect.unwrap(function) if function is not None else None
    code = getattr(inner, "__code__", None)
    if code is not None and (place := _place(code.co_filename, getattr(inner, "__globals__", None), roots)):
        properties["function"] = f"{place}.{code.co_name}"
    return {name: value for name, value in properties.items() if value}


def _type_of(error: BaseException, roots: Mapping[str, str]) -> tuple[str, str | None]:
    """Return the name of an exception's type, and for one of the user's the nearest that is not."""
    names = [_known_name(kind, roots) for kind in type(error).__mro__]
    known = next((name for name in names if name), None)
    return (names[0], None) if names[0] else (_USER_EXCEPTION, known)


def _known_name(kind: type, roots: Mapping[str, str]) -> str | None:
    """Return the name of a type that is found, under that name, in Python itself or in a known package."""
    module, name = str(kind.__module__), str(kind.__qualname__)  # whatever a metaclass makes of them
    found = sys.modules.get(module)
    if found is None or vars(found).get(name) is not kind:
        return None
    if module == "builtins":
        return name
    return f"{module}.{name}" if _is_pythons(found) or _root_of(_file_of(found), roots) else None


def _is_pythons(module: ModuleType) -> bool:
    """Tell whether a module is of the standard library, and not somebody's own of that name."""
    if module.__name__ in sys.builtin_module_names:
        return True
    file = os.path.realpath(_file_of(module))
    is_there = file.startswith(_STANDARD_LIBRARY + os.sep) and not any(
        f"{os.sep}{name}{os.sep}" in file for name in _INSTALLED
    )
    return is_there and module.__name__.partition(".")[0] in sys.stdlib_module_names


def _file_of(module: ModuleType) -> str:
    file = getattr(module, "__file__", None)
    return file if isinstance(file, str) else ""


def _causes(error: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    seen = {id(error)}
    while len(found) < _MOST_CAUSES:
        cause = error.__cause__
        if cause is None and not error.__suppress_context__:
            cause = error.__context__
        if cause is None or id(cause) in seen:
            break
        seen.add(id(cause))
        found.append(cause)
        error = cause
    return found


def _is_group(error: BaseException) -> bool:
    group = getattr(builtins, "BaseExceptionGroup", None)  # since 3.11
    return group is not None and isinstance(error, group)


def _frames(trace: TracebackType | None, roots: Mapping[str, str]) -> list[dict[str, Any]]:
    frames: list[dict[str, Any]] = []
    places: dict[tuple[str, int], str | None] = {}  # of a recursion there are thousands, all from one
    while trace is not None:
        frame, line, trace = trace.tb_frame, trace.tb_lineno, trace.tb_next
        code = frame.f_code
        if code.co_filename == wrap_calls.__code__.co_filename:
            continue  # it stands around every watched function
        key = code.co_filename, id(frame.f_globals)
        if key not in places:
            places[key] = _place(code.co_filename, frame.f_globals, roots)
        module = places[key]
        if module is not None:
            frames.append({"module": module, "function": code.co_name, "line": line})
        elif not frames or frames[-1]["module"] != _OTHER_CODE:
            frames.append({"module": _OTHER_CODE})
    return frames[-_MOST_FRAMES:]


def _place(filename: str, names: Mapping[str, Any] | None, roots: Mapping[str, str]) -> str | None:
    """Return the module of some code, if it lies where a known package was imported from.

    Args:
        filename: the file that it says it is from.
        names: the global names that it sees.
        roots: where known packages were imported from.
    """
    path = os.path.realpath(filename)
    root = _root_of(filename, roots)
    if root is None or not path.endswith(".py"):
        return None
    inner = path[len(root) : -len(".py")].replace(os.sep, ".")
    module = f"{roots[root]}{inner}".removesuffix(".__init__")
    # Any code can claim to come from a file; what was imported from it sees its names.
    for name in (module, "__main__"):
        found = sys.modules.get(name)
        if found is not None and vars(found) is names and os.path.realpath(_file_of(found)) == path:
            return module
    return None


def _root_of(filename: str, roots: Mapping[str, str]) -> str | None:
    """Return which of some folders a file lies in."""
    if not os.path.isabs(filename):
        return None
    folder = os.path.dirname(os.path.realpath(filename))
    while folder not in roots and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    return folder if folder in roots else None


def _roots(own: Collection[str], known: Collection[str]) -> dict[str, str]:
    """Return the folders that packages were imported from, each with the package's name."""
    roots = {}
    for package in (*own, *known):
        for root in getattr(sys.modules.get(package), "__path__", ()):
            if package in own or _is_installed(package, os.path.realpath(root)):
                roots[os.path.realpath(root)] = package
    return roots


@functools.cache
def _is_installed(package: str, root: str) -> bool:
    """Tell whether a folder is what the distribution of a package's name installed, and not somebody's own."""
    from importlib.metadata import distribution

    if os.path.basename(os.path.dirname(root)) not in _INSTALLED:
        return False
    for name in (package, *_OTHER_NAMES.get(package, ())):
        try:
            if os.path.realpath(str(distribution(name).locate_file(package))) == root:
                return True
        except Exception:  # noqa: BLE001, S112 - there is none, or somebody broke its metadata
            continue
    return False
