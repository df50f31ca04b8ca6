"""Any value a training script has, turned into one that JSON has.

Nothing heavy is imported to recognise a numpy scalar or a tensor: they are told by what they can do. What cannot be
stored becomes a `ValueProblem`; the rest of the record is kept.
"""

from __future__ import annotations

import enum
import itertools
import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tachograph.records._masking import mask_text

__all__ = [
    "MAX_STRING_CHARS",
    "LazyValue",
    "ValueProblem",
    "finite_or_none",
    "wait_for_event",
    "is_array",
    "is_number",
    "is_frozen",
    "to_plain",
    "freeze",
    "step_of",
]

MAX_STRING_CHARS = 65_536
MAX_ITEMS = 1_000
MAX_DEPTH = 16
MAX_METRIC_DEPTH = 8
MAX_NAME_CHARS = 256
MAX_VALUES = 10_000
MAX_PROBLEMS = 100

LONGEST_WAIT_S = 2.0
"""How long the writer waits for a device that is behind; then a value is missing, and telemetry goes on."""

_HUGE = 10**300  # beyond, there is no float
_LARGEST_STEP = 2**53  # beyond, a float does not tell neighbours apart
_SETTLED = frozenset({float, int, bool, type(None)})


class ValueProblem(NamedTuple):
    """Why a value is not, or not wholly, in the record."""

    where: str
    reason: str


class LazyValue:
    """A value that the writer works out, because finding it could take time."""

    __slots__ = ("find",)

    def __init__(self, find: Callable[[], Any]) -> None:
        self.find = find


class _Omit:
    """Stands for a value that cannot be stored."""


OMIT = _Omit()


def is_frozen(value: object) -> bool:
    """Tell whether a value is a plain number, bool or None that nobody can change behind our back."""
    return type(value) in _SETTLED and (type(value) is not int or -_HUGE < value < _HUGE)


def is_array(value: object) -> bool:
    """Tell whether a value is a numpy array, which its owner can change in place; numpy's scalars cannot be."""
    return hasattr(type(value), "setflags") and hasattr(type(value), "__setitem__")


def is_number(value: object) -> bool:
    """Tell whether a value read from a journal is a number that a float can hold; a bool is none."""
    return type(value) is float or (type(value) is int and -_HUGE < value < _HUGE)


def step_of(record: Mapping[str, Any]) -> int | None:
    """Return the step of a record read from a journal, or None if it says none that can be shown exactly."""
    step = record.get("global_step")
    return step if type(step) is int and -_LARGEST_STEP < step < _LARGEST_STEP else None


def finite_or_none(value: object) -> float | None:
    """Return a value read from a journal as a float, or None if it is no finite number."""
    return float(value) if is_number(value) and math.isfinite(value) else None  # type: ignore[arg-type]


def to_plain(value: Any, where: str, problems: list[ValueProblem], depth: int = 0) -> Any:
    """Return the value as JSON types, or `OMIT`; what was left out or cut is appended to `problems`."""
    if type(value) is int and not -_HUGE < value < _HUGE:
        problems.append(ValueProblem(where, "a whole number of more than 300 digits cannot be stored"))
        return OMIT
    if type(value) in _SETTLED:
        return value
    try:
        return _plain(value, where, problems, depth)
    except Exception as error:  # noqa: BLE001 - foreign __float__, item(), to_dict() can raise anything
        problems.append(
            ValueProblem(where, f"{type(value).__name__} could not be read: {type(error).__name__}: {error}")
        )
        return OMIT


def freeze(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Copy metrics so that nothing the caller does later can change them; nested ones get ``outer/inner`` names.

    Runs in the caller's thread, so it never waits for an accelerator: a tensor that lives on one is copied there and
    read by the writer.
    """
    settled: dict[str, Any] = {}
    _settle_into(settled, "", metrics, 0)
    return settled


def _settle_into(settled: dict[str, Any], prefix: str, metrics: Mapping[Any, Any], depth: int) -> None:
    for key, value in metrics.items():
        if len(settled) >= MAX_VALUES:
            settled[prefix or "metrics"] = ValueProblem(
                prefix or "metrics", f"more than {MAX_VALUES} values in one record"
            )
            return
        try:
            name = prefix + (key if type(key) is str else str(key))[:MAX_NAME_CHARS]
        except Exception as error:  # noqa: BLE001 - a foreign __str__
            name = f"{prefix}?"
            settled[name] = ValueProblem(name, f"a name could not be read: {type(error).__name__}: {error}")
            continue
        if type(value) in _SETTLED or type(value) is LazyValue:
            settled[name] = value
        elif type(value) is str:
            # Cut here, not in the writer: a waiting record must not hold megabytes. The writer reports the cut.
            settled[name] = value if len(value) <= MAX_STRING_CHARS else _LongText(value)
        elif isinstance(value, Mapping):
            if depth < MAX_METRIC_DEPTH:
                _settle_into(settled, f"{name}/", value, depth + 1)
            else:
                settled[name] = ValueProblem(name, f"nested deeper than {MAX_METRIC_DEPTH} levels")
        else:
            settled[name] = _settled(value, name)


def _settled(value: Any, name: str) -> Any:
    try:
        device = _accelerator(value)
        if device is not None:
            return _on_device(value, name, device)
    except Exception as error:  # noqa: BLE001 - foreign code
        return ValueProblem(name, f"{type(value).__name__} could not be read: {type(error).__name__}: {error}")
    problems: list[ValueProblem] = []
    result = to_plain(value, name, problems)
    return problems[0] if result is OMIT else result


class _LongText(str):
    """The head of a text that was too long to keep, with its length."""

    num_chars: int

    def __new__(cls, value: str) -> _LongText:
        text = super().__new__(cls, value[:MAX_STRING_CHARS])
        text.num_chars = len(value)
        return text


def _plain(value: Any, where: str, problems: list[ValueProblem], depth: int) -> Any:  # noqa: PLR0912
    if isinstance(value, ValueProblem):
        problems.append(value)
        return OMIT
    if isinstance(value, LazyValue):
        return to_plain(value.find(), where, problems, depth + 1)
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
        return str(value)  # a class, a dtype, a device
    if hasattr(type(value), "__float__"):
        return float(value)  # Decimal, Fraction and their like
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
        problems.append(ValueProblem(where, f"a text of {num_chars} characters was cut to {MAX_STRING_CHARS}"))
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
            break  # a structure that contains itself has no end
    return result


def _sequence(value: Any, where: str, problems: list[ValueProblem], depth: int) -> Any:
    if len(value) > MAX_ITEMS:
        problems.append(ValueProblem(where, f"a {type(value).__name__} of {len(value)} items was cut to {MAX_ITEMS}"))
    items = list(value)[:MAX_ITEMS]
    converted = [to_plain(item, f"{where}[{index}]", problems, depth + 1) for index, item in enumerate(items)]
    return [None if item is OMIT else item for item in converted]


def _array(value: Any, where: str, problems: list[ValueProblem], depth: int) -> Any:
    num_items = math.prod(int(size) for size in value.shape)
    if num_items == 1:
        item = value.item() if hasattr(value, "item") else value.numpy().item()
        if type(item) is type(value):
            item = float(item)  # numpy's long double is its own item
        if isinstance(item, complex):
            problems.append(ValueProblem(where, "a complex number cannot be stored; log its real and imaginary parts"))
            return OMIT
        return to_plain(item, where, problems, depth + 1)
    if num_items <= MAX_ITEMS:
        return to_plain(value.tolist(), where, problems, depth + 1)
    shape = tuple(int(size) for size in value.shape)
    problems.append(ValueProblem(where, f"an array of shape {shape} is not a metric; log a number made of it"))
    return OMIT


def _accelerator(value: Any) -> str | None:
    """Name the library whose computation we would wait for if we read the value now."""
    root = type(value).__module__.partition(".")[0]
    if root in {"jax", "jaxlib"}:
        return "jax"
    device = getattr(value, "device", None)
    if hasattr(value, "detach") and getattr(device, "type", "cpu") != "cpu":
        return "torch"
    return None


def _on_device(value: Any, name: str, library: str) -> Any:
    try:
        if math.prod(int(size) for size in value.shape) != 1:
            return ValueProblem(
                name, f"an array of shape {tuple(value.shape)} is not a metric; log a number made of it"
            )
        # torch tensors can be changed in place and hold their graph; jax arrays do neither.
        if library != "torch":
            return value
        value = value.detach()
        try:
            return _on_its_way(value, name)
        except Exception:  # noqa: BLE001 - such as no memory that can be pinned; read by the writer, which then waits
            return value.clone()
    except Exception as error:  # noqa: BLE001 - foreign code
        return ValueProblem(name, f"{type(value).__name__} could not be read: {type(error).__name__}: {error}")


def _on_its_way(value: Any, name: str) -> Any:
    """Order a copy of a tensor to the host and return at once; the writer reads it when it has arrived.

    Reading the tensor itself, in whatever thread, would wait for all that the device has still to do.
    """
    torch: Any = sys.modules["torch"]
    device = value.device
    if device.type != "cuda":
        return value.clone()
    if torch.cuda.is_current_stream_capturing():
        return ValueProblem(name, "a tensor cannot be logged while a CUDA graph is captured; log it after the replay")
    host = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
    host.copy_(value, non_blocking=True)
    route = (device.index, torch._C._cuda_getCurrentRawStream(device.index))
    journey = _journeys.get(route) or _journeys.setdefault(route, _Journey(*route))
    number = next(journey.numbers)
    journey.num_left = number
    return LazyValue(lambda: journey.arrived(host, number))


class _Journey:
    """Copies on their way along one stream of a device: they arrive in the order in which they left.

    The thread that trains only orders a copy. An event behind it is put by the writer, when it needs to know.
    """

    def __init__(self, device: int, stream: int) -> None:
        self._device = device
        self._stream = stream
        self._num_arrived = 0
        self.numbers = itertools.count(1)
        self.num_left = 0

    def arrived(self, host: Any, number: int) -> Any:
        """Return a value, once its copy is there.

        Raises:
            TimeoutError: if the device does not get there in time.
        """
        if number > self._num_arrived:
            cuda: Any = sys.modules["torch"].cuda
            num_left = self.num_left
            stream = (
                cuda.ExternalStream(self._stream, self._device) if self._stream else cuda.default_stream(self._device)
            )
            event = cuda.Event()
            event.record(stream)
            if not wait_for_event(event):
                raise TimeoutError(f"the device did not get there within {LONGEST_WAIT_S:g} s")
            self._num_arrived = num_left
        return host.item()


_journeys: dict[tuple[int, int], _Journey] = {}


def wait_for_event(event: Any) -> bool:
    """Wait, but not for long, until a device has come to an event, by asking: to synchronise would stop its queue."""
    until_s = time.monotonic() + LONGEST_WAIT_S
    while not event.query():
        if time.monotonic() > until_s:
            return False
        time.sleep(0.0005)
    return True


def _fields(value: Any) -> Mapping[Any, Any] | None:
    """Return the fields of the objects that people keep configs in."""
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
