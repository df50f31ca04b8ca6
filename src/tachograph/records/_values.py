"""Convert any value of a training script to a value that JSON can hold.

The conversion has two halves, on two threads.

`freeze` runs on the caller's thread, inside `log`. It copies whatever the caller could change later and must return in
microseconds, so it never waits for an accelerator. Plain numbers pass through. A single-element CUDA tensor is replaced
by a `LazyValue`, which `_lazy` explains.

`to_plain` runs on the writer thread (or on the caller's, for values on the host). It resolves lazy values and returns
JSON types. Nothing heavy is imported to recognise a numpy scalar or a tensor: they are recognised by their attributes.
A value that cannot be stored becomes a `ValueProblem`; the rest of the record is kept.
"""

from __future__ import annotations

import enum
import math
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from tachograph.records._lazy import GraphCaptureError, LazyValue, copy_to_host
from tachograph.records._masking import mask_text

__all__ = [
    "MAX_STRING_CHARS",
    "ValueProblem",
    "finite_or_none",
    "freeze",
    "is_array",
    "is_frozen",
    "is_number",
    "step_of",
    "to_plain",
]

MAX_STRING_CHARS = 65_536
MAX_ITEMS = 1_000
MAX_DEPTH = 16
MAX_METRIC_DEPTH = 8
MAX_NAME_CHARS = 256
MAX_VALUES = 10_000
MAX_PROBLEMS = 100

_MAX_INT = 10**300  # larger integers do not fit in a float
_MAX_STEP = 2**53  # a float cannot represent every integer beyond this
_FROZEN_TYPES = frozenset({float, int, bool, type(None)})


class ValueProblem(NamedTuple):
    """The reason why a value is missing from a record or was truncated."""

    where: str
    reason: str


class _Omitted:
    """The type of `OMIT`, which marks a value that cannot be stored."""


OMIT = _Omitted()


def is_frozen(value: object) -> bool:
    """Return whether a value is a plain number, a bool or None, which cannot change after it was logged."""
    return type(value) in _FROZEN_TYPES and (type(value) is not int or -_MAX_INT < value < _MAX_INT)


def is_array(value: object) -> bool:
    """Return whether a value is a numpy array, which its owner can change in place, unlike a numpy scalar."""
    return hasattr(type(value), "setflags") and hasattr(type(value), "__setitem__")


def is_number(value: object) -> bool:
    """Return whether a value read from a journal is a number that fits in a float; a bool does not count."""
    return type(value) is float or (type(value) is int and -_MAX_INT < value < _MAX_INT)


def step_of(record: Mapping[str, Any]) -> int | None:
    """Return the step of a record read from a journal, or None if it is missing or not exact as a float."""
    step = record.get("global_step")
    return step if type(step) is int and -_MAX_STEP < step < _MAX_STEP else None


def finite_or_none(value: object) -> float | None:
    """Return a value read from a journal as a float, or None if it is not a finite number."""
    return float(value) if is_number(value) and math.isfinite(value) else None  # type: ignore[arg-type]


def to_plain(value: Any, where: str, problems: list[ValueProblem], depth: int = 0) -> Any:
    """Return the value as JSON types, or `OMIT`; append an entry to `problems` for anything omitted or truncated."""
    if type(value) is int and not -_MAX_INT < value < _MAX_INT:
        problems.append(ValueProblem(where, "an integer of more than 300 digits cannot be stored"))
        return OMIT
    if type(value) in _FROZEN_TYPES:
        return value
    try:
        return _convert(value, where, problems, depth)
    except Exception as error:  # noqa: BLE001 - third-party __float__, item() or to_dict() can raise anything
        problems.append(
            ValueProblem(where, f"{type(value).__name__} could not be read: {type(error).__name__}: {error}")
        )
        return OMIT


def freeze(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Copy metrics so that later changes by the caller cannot affect them; flatten nested ones to ``outer/inner``.

    Runs on the caller's thread and never waits for an accelerator: the writer reads values that are on a device.
    """
    frozen: dict[str, Any] = {}
    _freeze_into(frozen, "", metrics, 0)
    return frozen


def _freeze_into(frozen: dict[str, Any], prefix: str, metrics: Mapping[Any, Any], depth: int) -> None:
    for key, value in metrics.items():
        if len(frozen) >= MAX_VALUES:
            frozen[prefix or "metrics"] = ValueProblem(
                prefix or "metrics", f"more than {MAX_VALUES} values in one record"
            )
            return
        try:
            name = prefix + (key if type(key) is str else str(key))[:MAX_NAME_CHARS]
        except Exception as error:  # noqa: BLE001 - a third-party __str__
            name = f"{prefix}?"
            frozen[name] = ValueProblem(name, f"a name could not be read: {type(error).__name__}: {error}")
            continue
        if type(value) in _FROZEN_TYPES or isinstance(value, LazyValue):
            frozen[name] = value
        elif type(value) is str:
            # Truncate here: a buffered record must not hold megabytes. The writer reports the truncation.
            frozen[name] = value if len(value) <= MAX_STRING_CHARS else _TruncatedText(value)
        elif isinstance(value, Mapping):
            if depth < MAX_METRIC_DEPTH:
                _freeze_into(frozen, f"{name}/", value, depth + 1)
            else:
                frozen[name] = ValueProblem(name, f"nested deeper than {MAX_METRIC_DEPTH} levels")
        else:
            frozen[name] = _freeze_value(value, name)


def _freeze_value(value: Any, name: str) -> Any:
    try:
        device = _device_library(value)
        if device is not None:
            return _freeze_device_value(value, name, device)
    except Exception as error:  # noqa: BLE001 - third-party code
        return ValueProblem(name, f"{type(value).__name__} could not be read: {type(error).__name__}: {error}")
    problems: list[ValueProblem] = []
    result = to_plain(value, name, problems)
    return problems[0] if result is OMIT else result


class _TruncatedText(str):
    """The beginning of a string that was too long to keep, with its original length."""

    num_chars: int

    def __new__(cls, value: str) -> _TruncatedText:
        text = super().__new__(cls, value[:MAX_STRING_CHARS])
        text.num_chars = len(value)
        return text


def _convert(value: Any, where: str, problems: list[ValueProblem], depth: int) -> Any:  # noqa: PLR0912
    if isinstance(value, ValueProblem):
        problems.append(value)
        return OMIT
    if isinstance(value, LazyValue):
        return to_plain(value.compute(), where, problems, depth + 1)
    if isinstance(value, str) and not isinstance(value, enum.Enum):
        return _text(value, where, problems)
    if isinstance(value, enum.Enum):
        return to_plain(value.value, where, problems, depth + 1)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, int):
        return to_plain(int(value), where, problems, depth + 1)
    if depth >= MAX_DEPTH:
        problems.append(ValueProblem(where, f"nested deeper than {MAX_DEPTH} levels"))
        return OMIT
    if isinstance(value, Mapping):
        return _mapping(value, where, problems, depth)
    if isinstance(value, (list, tuple, set, frozenset)):
        return _sequence(value, where, problems, depth)
    if isinstance(value, os.PathLike):
        return _text(os.fspath(value), where, problems)
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return _array(value, where, problems, depth)
    if hasattr(value, "isoformat"):
        return str(value.isoformat())
    if isinstance(value, type) or type(value).__module__.partition(".")[0] == "torch":
        return str(value)  # such as a class, a dtype or a device
    if hasattr(type(value), "__float__"):
        return float(value)  # such as Decimal and Fraction
    fields = _fields(value)
    if fields is not None:
        return _mapping(fields, where, problems, depth)
    problems.append(
        ValueProblem(where, f"values of type {type(value).__module__}.{type(value).__name__} cannot be stored")
    )
    return OMIT


def _text(value: Any, where: str, problems: list[ValueProblem]) -> str:
    text = str(value)
    num_chars = getattr(value, "num_chars", len(text))
    if num_chars > MAX_STRING_CHARS:
        text = f"{text[:MAX_STRING_CHARS]}… [cut, {num_chars} characters]"
        problems.append(ValueProblem(where, f"a string of {num_chars} characters was truncated to {MAX_STRING_CHARS}"))
    if not text.isascii():
        text = text.encode("utf-8", "backslashreplace").decode()  # lone surrogates are not valid JSON
    return mask_text(text)


def _mapping(value: Mapping[Any, Any], where: str, problems: list[ValueProblem], depth: int) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, item in value.items():
        name = key if type(key) is str and key.isascii() else _text(key, where, problems)
        converted = to_plain(item, f"{where}.{name}" if where else name, problems, depth + 1)
        if converted is not OMIT:
            result[name] = converted
        if len(problems) >= MAX_PROBLEMS:
            break  # a structure that contains itself never ends
    return result


def _sequence(value: Any, where: str, problems: list[ValueProblem], depth: int) -> Any:
    if len(value) > MAX_ITEMS:
        problems.append(
            ValueProblem(where, f"a {type(value).__name__} of {len(value)} items was truncated to {MAX_ITEMS}")
        )
    items = list(value)[:MAX_ITEMS]
    converted = [to_plain(item, f"{where}[{index}]", problems, depth + 1) for index, item in enumerate(items)]
    return [None if item is OMIT else item for item in converted]


def _array(value: Any, where: str, problems: list[ValueProblem], depth: int) -> Any:
    num_items = math.prod(int(size) for size in value.shape)
    if num_items == 1:
        item = value.item() if hasattr(value, "item") else value.numpy().item()
        if type(item) is type(value):
            item = float(item)  # item() of numpy's long double returns a long double
        if isinstance(item, complex):
            problems.append(ValueProblem(where, "a complex number cannot be stored; log its real and imaginary parts"))
            return OMIT
        return to_plain(item, where, problems, depth + 1)
    if num_items <= MAX_ITEMS:
        return to_plain(value.tolist(), where, problems, depth + 1)
    shape = tuple(int(size) for size in value.shape)
    problems.append(ValueProblem(where, f"an array of shape {shape} is not a metric; log a scalar computed from it"))
    return OMIT


def _device_library(value: Any) -> str | None:
    """Return the library that computes the value on a device, or None if reading it now would not block."""
    root = type(value).__module__.partition(".")[0]
    if root in {"jax", "jaxlib"}:
        return "jax"
    device = getattr(value, "device", None)
    if hasattr(value, "detach") and getattr(device, "type", "cpu") != "cpu":
        return "torch"
    return None


def _freeze_device_value(value: Any, name: str, library: str) -> Any:
    try:
        if math.prod(int(size) for size in value.shape) != 1:
            return ValueProblem(
                name, f"an array of shape {tuple(value.shape)} is not a metric; log a scalar computed from it"
            )
        # Unlike torch tensors, jax arrays cannot change in place and hold no autograd graph.
        if library != "torch":
            return value
        value = value.detach()
        try:
            return copy_to_host(value)
        except GraphCaptureError as error:
            return ValueProblem(name, str(error))
        except Exception:  # noqa: BLE001 - such as no pinned memory: the writer reads the clone and waits for it
            return value.clone()
    except Exception as error:  # noqa: BLE001 - third-party code
        return ValueProblem(name, f"{type(value).__name__} could not be read: {type(error).__name__}: {error}")


def _fields(value: Any) -> Mapping[Any, Any] | None:
    """Return the fields of a config object: dataclass, struct, pydantic model or namespace."""
    if hasattr(value, "__dataclass_fields__"):
        return {name: getattr(value, name, None) for name in value.__dataclass_fields__}
    if hasattr(value, "__struct_fields__"):
        return {name: getattr(value, name, None) for name in value.__struct_fields__}
    for method in ("model_dump", "to_dict"):
        if callable(getattr(value, method, None)):
            fields = getattr(value, method)()
            return dict(fields) if isinstance(fields, Mapping) else None
    if type(value).__name__ in {"Namespace", "SimpleNamespace"}:
        return dict(vars(value))
    return None
