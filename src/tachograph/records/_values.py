"""Convert any value of a training script to a value that JSON can hold.

The conversion has two halves, on two threads.

`freeze` runs on the caller's thread, inside `log`. It copies whatever the caller could change later and must return in
microseconds, so it never waits for an accelerator. Plain numbers pass through. A single-element CUDA tensor is replaced
by a `LazyValue`, which `_lazy` explains.

`to_plain` runs on the writer thread (or on the caller's, for values on the host). It resolves lazy values and returns
JSON types. Nothing heavy is imported to recognise a numpy scalar or a tensor: they are recognised by their attributes.
A value that cannot be stored becomes a `ValueProblem`; the rest of the record is kept.

Both halves draw on a `ValueBudget`, one per record. Limits per list, per text and per level do not bound a record: a
list that contains itself four times is endless, and a thousand lists of a thousand numbers are a million. So every
value and every character counts against the budget of the record, wherever it is; when the budget is spent, the
conversion stops at once, and one `RecordCut` says so. No length is trusted, and no iteration to end.
"""

from __future__ import annotations

import enum
import itertools
import math
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tachograph._base.guard import reraise_from_signal_handler
from tachograph.records._lazy import GraphCaptureError, LazyValue, copy_to_host
from tachograph.records._masking import mask_text

__all__ = [
    "MAX_STRING_CHARS",
    "RecordCut",
    "ValueBudget",
    "ValueProblem",
    "bounded_items",
    "finite_or_none",
    "flatten",
    "freeze",
    "is_array",
    "is_frozen",
    "is_number",
    "parse_literal",
    "step_of",
    "to_plain",
]

MAX_STRING_CHARS = 65_536
MAX_ITEMS = 1_000
MAX_DEPTH = 16
MAX_METRIC_DEPTH = 8
MAX_NAME_CHARS = 256
MAX_VALUES = 10_000
MAX_RECORD_CHARS = 1 << 20
MAX_PROBLEMS = 100

_MAX_INT = 10**300  # larger integers do not fit in a float
_MAX_STEP = 2**53  # a float cannot represent every integer beyond this
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
_FROZEN_TYPES = frozenset({float, int, bool, type(None)})


class ValueProblem(NamedTuple):
    """The reason why a value is missing from a record or was truncated."""

    where: str
    reason: str


class RecordCut(ValueProblem):
    """The reason why the rest of a record is missing. A record has at most one."""

    __slots__ = ()


class ValueBudget:
    """The values and characters that one record may still take. Every conversion of the record draws on it."""

    __slots__ = ("_has_reported", "is_spent", "num_chars", "num_values", "open_ids")

    def __init__(self, num_values: int = MAX_VALUES, num_chars: int = MAX_RECORD_CHARS) -> None:
        self.num_values = num_values
        self.num_chars = num_chars
        self.is_spent = False
        self.open_ids: set[int] = set()
        """The containers that are being converted: one that comes up again contains itself."""
        self._has_reported = False

    def take_value(self, where: str, problems: list[ValueProblem]) -> bool:
        """Take one value; return False if the budget is spent."""
        self.num_values -= 1
        if self.num_values < 0:
            self.is_spent = True
            self.report(where, problems, "too many values in one record; the rest is missing")
        return not self.is_spent

    def take_chars(self, num_chars: int, where: str, problems: list[ValueProblem]) -> int:
        """Take characters; return how many of them fit."""
        num_fitting = min(num_chars, max(self.num_chars, 0))
        self.num_chars -= num_chars
        if num_fitting < num_chars:
            self.is_spent = True
            self.report(where, problems, "too much text in one record; the rest is missing")
        return num_fitting

    def report(self, where: str, problems: list[ValueProblem], reason: str) -> None:
        """Report that something was cut; once, because a structure that is too large is too large in many places."""
        if not self._has_reported:
            self._has_reported = True
            # The name of the field, without the place in it: a problem is recorded once per name.
            problems.append(RecordCut(where.partition("[")[0], reason))


class _Omitted:
    """The type of `OMIT`, which marks a value that cannot be stored."""


OMIT = _Omitted()


def is_frozen(value: object) -> bool:
    """Return whether a value is a plain number, a bool or None, which cannot change after it was logged."""
    return type(value) in _FROZEN_TYPES and (type(value) is not int or -_MAX_INT < value < _MAX_INT)


def is_array(value: object) -> bool:
    """Return whether a value is a numpy array, which its owner can change in place, unlike a numpy scalar."""
    return hasattr(type(value), "setflags") and hasattr(type(value), "__setitem__")


def parse_literal(text: str) -> Any:
    """Return the number or truth value that a text stands for, or the text: some tools keep parameters as texts."""
    if text in {"True", "False"}:
        return text == "True"
    if _NUMBER.fullmatch(text):
        return float(text) if any(character in text for character in ".eE") else int(text)
    return text


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


def to_plain(
    value: Any, where: str, problems: list[ValueProblem], budget: ValueBudget | None = None, depth: int = 0
) -> Any:
    """Return the value as JSON types, or `OMIT`; append an entry to `problems` for anything omitted or truncated.

    Args:
        value: any value.
        where: its name, for the problems.
        problems: receives the problems.
        budget: the rest of the budget of the value's record; by default, the value is a record of its own.
        depth: the number of containers around the value.
    """
    if type(value) is int and not -_MAX_INT < value < _MAX_INT:
        _add_problem(problems, where, "an integer of more than 300 digits cannot be stored")
        return OMIT
    if type(value) in _FROZEN_TYPES:
        return value
    try:
        return _convert(value, where, problems, budget or ValueBudget(), depth)
    except Exception as error:  # noqa: BLE001 - third-party __float__, item() or to_dict() can raise anything
        reraise_from_signal_handler(error)
        _add_problem(problems, where, f"{type(value).__name__} could not be read: {type(error).__name__}: {error}")
        return OMIT


def bounded_items(mapping: Mapping[Any, Any], max_items: int = MAX_VALUES + 1) -> Iterator[tuple[Any, Any]]:
    """Iterate over a mapping that may not end; one item more than a record can hold, so that the excess is noticed."""
    return itertools.islice(iter(mapping.items()), max_items)


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested dicts as one, with names joined by slashes."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= flatten(value, f"{prefix}{name}/") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


def freeze(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Copy metrics so that later changes by the caller cannot affect them; flatten nested ones to ``outer/inner``.

    Runs on the caller's thread and never waits for an accelerator: the writer reads values that are on a device.
    Problems are among the values of the result; the writer reports them.
    """
    frozen: dict[str, Any] = {}
    problems: list[ValueProblem] = []
    _freeze_into(frozen, "", metrics, 0, problems, ValueBudget())
    for index, problem in enumerate(problems):
        frozen[f"\0{index}"] = problem  # not the name of its field, which has a value
    return frozen


def _freeze_into(
    frozen: dict[str, Any],
    prefix: str,
    metrics: Mapping[Any, Any],
    depth: int,
    problems: list[ValueProblem],
    budget: ValueBudget,
) -> None:
    for key, value in metrics.items():
        if not budget.take_value(prefix.rstrip("/") or "metrics", problems):
            return
        try:
            name = prefix + (key if type(key) is str else str(key))[:MAX_NAME_CHARS]
        except Exception as error:  # noqa: BLE001 - a third-party __str__
            reraise_from_signal_handler(error)
            name = f"{prefix}?"
            frozen[name] = ValueProblem(name, f"a name could not be read: {type(error).__name__}: {error}")
            continue
        if type(value) in _FROZEN_TYPES or isinstance(value, LazyValue):
            frozen[name] = value
        elif type(value) is str:
            # Truncate here: a buffered record must not hold megabytes. The writer reports the truncation.
            frozen[name] = _keep_text(value, name, problems, budget)
        elif isinstance(value, Mapping):
            if depth < MAX_METRIC_DEPTH:
                _freeze_into(frozen, f"{name}/", value, depth + 1, problems, budget)
            else:
                budget.report(name, problems, f"nested deeper than {MAX_METRIC_DEPTH} levels")
        else:
            result = _freeze_value(value, name, problems, budget)
            if result is not OMIT:
                frozen[name] = result


def _keep_text(value: str, name: str, problems: list[ValueProblem], budget: ValueBudget) -> str:
    num_chars = budget.take_chars(min(len(value), MAX_STRING_CHARS), name, problems)
    return value if num_chars == len(value) else _TruncatedText(value, num_chars)


def _freeze_value(value: Any, name: str, problems: list[ValueProblem], budget: ValueBudget) -> Any:
    try:
        device = _device_library(value)
        if device is not None:
            return _freeze_device_value(value, name, device)
    except Exception as error:  # noqa: BLE001 - third-party code
        reraise_from_signal_handler(error)
        return ValueProblem(name, f"{type(value).__name__} could not be read: {type(error).__name__}: {error}")
    num_problems = len(problems)
    result = to_plain(value, name, problems, budget)
    return problems.pop() if result is OMIT and len(problems) > num_problems else result


class _TruncatedText(str):
    """The beginning of a string that was too long to keep, with its original length."""

    num_chars: int

    def __new__(cls, value: str, max_chars: int) -> _TruncatedText:
        text = super().__new__(cls, value[:max_chars])
        text.num_chars = len(value)
        return text


def _add_problem(problems: list[ValueProblem], where: str, reason: str) -> None:
    if len(problems) < MAX_PROBLEMS:
        problems.append(ValueProblem(where, reason))


def _convert(value: Any, where: str, problems: list[ValueProblem], budget: ValueBudget, depth: int) -> Any:
    if isinstance(value, ValueProblem):
        problems.append(value)
        return OMIT
    if isinstance(value, LazyValue):
        return to_plain(value.compute(), where, problems, budget, depth + 1)
    if isinstance(value, str) and not isinstance(value, enum.Enum):
        return _text(value, where, problems, budget)
    if isinstance(value, enum.Enum):
        return to_plain(value.value, where, problems, budget, depth + 1)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, int):
        return to_plain(int(value), where, problems, budget, depth + 1)
    if depth >= MAX_DEPTH or id(value) in budget.open_ids:
        is_deep = depth >= MAX_DEPTH
        budget.report(where, problems, f"nested deeper than {MAX_DEPTH} levels" if is_deep else "contains itself")
        return OMIT
    budget.open_ids.add(id(value))
    try:
        return _convert_container(value, where, problems, budget, depth)
    finally:
        budget.open_ids.discard(id(value))


def _convert_container(value: Any, where: str, problems: list[ValueProblem], budget: ValueBudget, depth: int) -> Any:
    if isinstance(value, Mapping):
        return _mapping(value, where, problems, budget, depth)
    if isinstance(value, (list, tuple, set, frozenset)):
        return _sequence(value, where, problems, budget, depth)
    if isinstance(value, os.PathLike):
        return _text(os.fspath(value), where, problems, budget)
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return _array(value, where, problems, budget, depth)
    if hasattr(value, "isoformat"):
        return _text(value.isoformat(), where, problems, budget)
    if isinstance(value, type) or type(value).__module__.partition(".")[0] == "torch":
        return _text(value, where, problems, budget)  # such as a class, a dtype or a device
    if hasattr(type(value), "__float__"):
        return float(value)  # such as Decimal and Fraction
    fields = _fields(value)
    if fields is not None:
        return _mapping(fields, where, problems, budget, depth)
    _add_problem(problems, where, f"values of type {type(value).__module__}.{type(value).__name__} cannot be stored")
    return OMIT


def _text(value: Any, where: str, problems: list[ValueProblem], budget: ValueBudget) -> str:
    if not isinstance(value, str):
        value = str(value)
    num_chars = value.num_chars if type(value) is _TruncatedText else str.__len__(value)
    # Methods of `str` itself: a subclass may override them. Slicing first keeps the copies small.
    text = str.__getitem__(value, slice(0, MAX_STRING_CHARS))
    text = text[: budget.take_chars(len(text), where, problems)]
    if len(text) < num_chars:
        reason = f"a string of {num_chars} characters was truncated to {len(text)}"
        text = f"{text}… [cut, {num_chars} characters]"
        if not budget.is_spent:
            _add_problem(problems, where, reason)
    if not text.isascii():
        text = text.encode("utf-8", "backslashreplace").decode()  # lone surrogates are not valid JSON
    return mask_text(text)


def _name(key: Any) -> str:
    """Return a key as a name; names are short, and do not count against the budget."""
    if type(key) is str and len(key) <= MAX_NAME_CHARS and key.isascii():
        return key
    name = str.__getitem__(key if isinstance(key, str) else str(key), slice(0, MAX_NAME_CHARS))
    return _text(name, "", [], ValueBudget())


def _mapping(
    value: Mapping[Any, Any], where: str, problems: list[ValueProblem], budget: ValueBudget, depth: int
) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, item in value.items():
        if not budget.take_value(where, problems):
            break
        name = _name(key)
        if is_frozen(item):
            result[name] = item
            continue
        plain_item = to_plain(item, f"{where}.{name}" if where else name, problems, budget, depth + 1)
        if plain_item is not OMIT:
            result[name] = plain_item
    return result


def _sequence(value: Any, where: str, problems: list[ValueProblem], budget: ValueBudget, depth: int) -> list[Any]:
    result: list[Any] = []
    for item in value:
        if len(result) >= MAX_ITEMS:
            _add_problem(problems, where, f"{_describe_size(value)} was truncated to {MAX_ITEMS}")
            break
        if not budget.take_value(where, problems):
            break
        if not is_frozen(item):
            item = to_plain(item, f"{where}[{len(result)}]", problems, budget, depth + 1)  # noqa: PLW2901
        result.append(None if item is OMIT else item)
    return result


def _describe_size(value: Any) -> str:
    try:
        size = f"{len(value)} items"
    except Exception as error:  # noqa: BLE001 - a third-party __len__
        reraise_from_signal_handler(error)
        size = "unknown size"
    return f"a {type(value).__name__} of {size}"


def _array(value: Any, where: str, problems: list[ValueProblem], budget: ValueBudget, depth: int) -> Any:
    shape = tuple(int(size) for size in itertools.islice(value.shape, MAX_ITEMS))
    num_items = math.prod(shape)
    if num_items == 1:
        item = value.item() if hasattr(value, "item") else value.numpy().item()
        if type(item) is type(value):
            item = float(item)  # item() of numpy's long double returns a long double
        if isinstance(item, complex):
            _add_problem(problems, where, "a complex number cannot be stored; log its real and imaginary parts")
            return OMIT
        return to_plain(item, where, problems, budget, depth + 1)
    if num_items <= MAX_ITEMS:
        return to_plain(value.tolist(), where, problems, budget, depth + 1)
    _add_problem(problems, where, f"an array of shape {shape} is not a metric; log a scalar computed from it")
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
        except Exception as error:  # noqa: BLE001 - such as no pinned memory: the writer reads the clone and waits for it
            reraise_from_signal_handler(error)
            return value.clone()
    except Exception as error:  # noqa: BLE001 - third-party code
        reraise_from_signal_handler(error)
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
            return fields if isinstance(fields, Mapping) else None
    if type(value).__name__ in {"Namespace", "SimpleNamespace"}:
        return dict(vars(value))
    return None
