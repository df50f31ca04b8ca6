"""The properties of an ``error`` event: types, and places in known packages. Never the text of an exception.

Privacy rules:

* The content of an exception is never read: no message, notes, arguments or attributes, no locals, no source lines.
* A type is named only if Python itself or a known package defines it. Any other one is a ``user exception``, with its
  nearest known base class.
* A frame is named only if its code belongs to a known package. All others are ``other code``; consecutive ones are
  merged.

`_known_code` decides which types and code are known, and trusts no name that an exception or its code claims.

`KeyboardInterrupt`, `SystemExit`, `GeneratorExit`, the end of an iterator and cancellation are decisions, not failures,
and are never reported.
"""

from __future__ import annotations

import builtins
import inspect
import sys
from collections.abc import Callable, Collection, Mapping
from types import TracebackType
from typing import Any

from tachograph._base.decorator import wrap_calls
from tachograph.usage._known_code import known_type_name, module_of_code, package_roots

__all__ = ["error_properties", "is_failure"]

_USER_EXCEPTION = "user exception"
_OTHER_CODE = "other code"
_MAX_CAUSES = 8
_MAX_FRAMES = 40


def is_failure(error: BaseException) -> bool:
    """Return whether an exception is a failure, and not the intended end of a program, an iterator or a task."""
    cancelled_error = getattr(sys.modules.get("concurrent.futures"), "CancelledError", StopIteration)
    return isinstance(error, Exception) and not isinstance(error, (StopIteration, StopAsyncIteration, cancelled_error))


def error_properties(
    error: BaseException,
    app_packages: Collection[str],
    other_packages: Collection[str],
    function: Callable[..., Any] | None = None,
) -> dict[str, Any]:
    """Return the properties of the event for an exception.

    Args:
        error: the exception.
        app_packages: packages of the app, known wherever they are.
        other_packages: other packages, known only where their distribution is installed.
        function: the watched function that the exception left, if any.
    """
    roots = package_roots(app_packages, other_packages)
    kind, base = _type_names(error, roots)
    properties: dict[str, Any] = {"type": kind, "base": base, "frames": _frames(error.__traceback__, roots)}
    properties["causes"] = [_type_names(cause, roots)[0] for cause in _causes(error)]
    members = getattr(error, "exceptions", None) if _is_group(error) else None
    properties["members"] = [_type_names(member, roots)[0] for member in (members or ())[:_MAX_CAUSES]]
    inner = inspect.unwrap(function) if function is not None else None
    code = getattr(inner, "__code__", None)
    if code is not None and (module := module_of_code(code.co_filename, getattr(inner, "__globals__", None), roots)):
        properties["function"] = f"{module}.{code.co_name}"
    return {name: value for name, value in properties.items() if value}


def _type_names(error: BaseException, roots: Mapping[str, str]) -> tuple[str, str | None]:
    """Return the name of an exception's type, and of the nearest known base class of a user exception."""
    names = (known_type_name(kind, roots) for kind in type(error).__mro__)
    name = next(names)
    return (name, None) if name else (_USER_EXCEPTION, next(filter(None, names), None))


def _causes(error: BaseException) -> list[BaseException]:
    causes: list[BaseException] = []
    visited_ids = {id(error)}  # causes may form a cycle
    while len(causes) < _MAX_CAUSES:
        cause = error.__cause__
        if cause is None and not error.__suppress_context__:
            cause = error.__context__
        if cause is None or id(cause) in visited_ids:
            break
        visited_ids.add(id(cause))
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
            modules[key] = module_of_code(code.co_filename, frame.f_globals, roots)
        module = modules[key]
        if module is not None:
            frames.append({"module": module, "function": code.co_name, "line": line})
        elif not frames or frames[-1]["module"] != _OTHER_CODE:
            frames.append({"module": _OTHER_CODE})
    return frames[-_MAX_FRAMES:]
