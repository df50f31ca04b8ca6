"""The typed fields of events. None of them passes on free text or an exact number.

Each field turns the values it understands into coarse ones and drops all others. The first line of a public class is
also its description in the documentation, see `describe_kinds`.

**Numbers.** Counts, sizes and durations become the nearest *usual number*, see `_nearest_usual`. People choose powers
of two (ranks, batches, sizes of memory) and round decimal numbers (steps, samples), so such a value is sent unchanged
and says nothing about its user. An unusual one is lost among its neighbours: there are about thirty usual numbers from
1,000 to 10,000, and as many or fewer in every other decade.
"""

from __future__ import annotations

import enum
import functools
import math
import re
import sys
from collections.abc import Collection, Iterable, Mapping
from numbers import Real
from typing import Any, Final

from tachograph._base.guard import reraise_from_signal_handler
from tachograph.usage._local_paths import LOCAL_PATHS

__all__ = [
    "FIELD_TYPES",
    "INVALID",
    "REDACTED",
    "USUAL_NUMBERS",
    "Choice",
    "CodeName",
    "Count",
    "Device",
    "SchemaField",
    "Flag",
    "Group",
    "HubId",
    "LineNumber",
    "ListOf",
    "Measure",
    "ModelType",
    "Seconds",
    "Size",
    "Version",
    "clean_fields",
    "describe_fields",
    "describe_kinds",
]


class _Invalid(enum.Enum):
    INVALID = enum.auto()


INVALID: Final = _Invalid.INVALID
"""Returned for a value that a field does not understand."""
REDACTED = "[redacted]"
OTHER = "other"

_MAX_TEXT_CHARS = 200
_MAX_NUMBER = 1e18
# As written in configs. Longer numbers, and forms such as 0x1f, could be an id.
_NUMBER = r"(?a)[+-]?\d{1,16}(?:\.\d{0,16})?(?:[eE][+-]?\d{1,2})?"
_MIN_MEASURE = 1e-12
_GIB = 1 << 30

USUAL_NUMBERS = (
    "A usual number is a digit times a power of two (16, 24, 80, 144, 4096), or a digit, 1.2, 1.5 or 2.5 times a power "
    "of ten (250, 1000, 1200). Sizes from 1 GiB on are a digit times a power of two only: 251.6 GiB is sent as 256. "
    "From a million on, a usual number is one of millions, billions and so on: 14.8 billion is sent as 15 billion."
)
"""For the documentation."""
_BINARY = (8, 9, 10, 12, 14, 16)
"""The digits from 1 to 9 times a power of two, in one octave."""
_DECIMAL = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9, 10)
_LARGE = 1e6


class SchemaField:
    """A field of an event.

    Args:
        doc: its meaning, for the documentation.
    """

    kind = ""
    """The kind of value that is sent, in words for the documentation."""

    def __init__(self, doc: str) -> None:
        self.doc = doc

    def clean(self, value: Any, organizations: Collection[str]) -> Any:
        """Return the coarse value that may be sent, or `INVALID`."""
        raise NotImplementedError

    def clean_stored(self, value: Any, organizations: Collection[str]) -> Any:
        """Clean a value that `clean` returned earlier and that was read from the disk, where anyone can edit it."""
        return self.clean(value, organizations)


class Flag(SchemaField):
    """True or false."""

    kind = "flag"

    def clean(self, value: Any, organizations: Collection[str]) -> Any:
        """Return a bool unchanged."""
        if isinstance(value, str):  # some config formats know only texts
            value = {"true": True, "false": False}.get(value.strip().lower())
        return value if isinstance(value, bool) else INVALID


class Count(SchemaField):
    """A number of things, rounded to the nearest usual number: 16 is sent as 16, 4321 as 4096."""

    kind = "count"

    def clean(self, value: Any, organizations: Collection[str]) -> Any:
        """Return the nearest usual number."""
        number = _real(value)
        return INVALID if number is None or number < 0 else int(_nearest_usual(math.floor(number)))


class Size(SchemaField):
    """Bytes, sent as GiB and rounded to the nearest usual number: 79.6 GiB is sent as 80."""

    kind = "GiB"

    def clean(self, value: Any, organizations: Collection[str]) -> Any:
        """Return the bytes as coarse GiB."""
        number = _real(value)
        return INVALID if number is None or number < 0 else _round_coarsely(number / _GIB, is_size=True)

    def clean_stored(self, value: Any, organizations: Collection[str]) -> Any:
        """Return the coarse GiB."""
        return Seconds("").clean(value, organizations)


class Seconds(SchemaField):
    """A duration in seconds, rounded to the nearest usual number: 754 is sent as 768."""

    kind = "seconds"

    def clean(self, value: Any, organizations: Collection[str]) -> Any:
        """Return the coarse duration."""
        number = _real(value)
        return INVALID if number is None or number < 0 else _round_coarsely(number)


class Measure(SchemaField):
    """A usual number, or one with two significant digits: 0.01234 is sent as 0.012. `NaN` and infinities are words."""

    kind = "number"

    def clean(self, value: Any, organizations: Collection[str]) -> Any:
        """Return the rounded number."""
        if isinstance(value, Real) and not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if float(value) > 0 else "-Infinity"
        number = _real(value)
        if number is None:
            return INVALID
        if abs(number) >= 1 and _nearest_usual(abs(number)) == abs(number):
            return number  # the scale of an adapter is often 128 or 256
        return float(f"{number:.1e}") if abs(number) >= _MIN_MEASURE else 0.0

    def clean_stored(self, value: Any, organizations: Collection[str]) -> Any:
        """Return the rounded number, or the word for NaN or an infinity."""
        return value if value in ("NaN", "Infinity", "-Infinity") else self.clean(value, organizations)


class Choice(SchemaField):
    """One of the listed words, else `other`.

    Args:
        doc: its meaning.
        *words: the words that may be sent.
        also: aliases, each with the word that is sent for it.
    """

    def __init__(self, doc: str, *words: str, also: Mapping[str, str] | None = None) -> None:
        super().__init__(doc)
        self.words = {str(word).lower(): word for word in (*words, *(also or {}).values())}
        self._aliases = {alias.lower(): word for alias, word in (also or {}).items()}
        self.kind = f"one of {', '.join(map(str, [*words, OTHER]))}"

    def clean(self, value: Any, organizations: Collection[str]) -> Any:
        """Return the listed word."""
        text = (_text(value) or "").strip().lower()
        return INVALID if not text else self.words.get(text) or self._aliases.get(text) or OTHER


class ModelType(SchemaField):
    """A model type that transformers ships, such as `llama`, else `other`."""

    kind = "model type"

    def clean(self, value: Any, organizations: Collection[str]) -> Any:
        """Return the type if transformers ships it; types that the user registered are private."""
        text = _text(value)
        if not text:
            return INVALID
        auto = sys.modules.get("transformers.models.auto.configuration_auto")
        return text if text in getattr(auto, "CONFIG_MAPPING_NAMES", {}) else OTHER

    def clean_stored(self, value: Any, organizations: Collection[str]) -> Any:
        """Return the type if it has the form of one: the process that sends it need not have imported transformers."""
        text = _text(value)
        return text if text and re.fullmatch(r"(?a)[\w-]{1,60}", text) else INVALID


class Version(SchemaField):
    """A version without its local part, unless that names a build for an accelerator: `2.13.0+cu128`."""

    kind = "version"
    # At most three numbers: four could be an IP address.
    _VERSION = (
        r"(\d{1,4}(?:\.\d{1,4}){0,2}(?:(?:a|b|rc)\d{1,4})?(?:\.post\d{1,4})?(?:\.dev\d{1,8})?)"
        r"(\+(?:cpu|cu\d{2,3}|rocm\d(?:\.\d){0,2}|xpu))?(?:\+[\w.]*)?"
    )

    def clean(self, value: Any, organizations: Collection[str]) -> Any:
        """Return the public part of a version."""
        match = re.fullmatch(self._VERSION, _text(value) or "")
        return INVALID if match is None else match[1] + (match[2] or "")


class HubId(SchemaField):
    """An id on the Hub, if its owner is one of `organizations` and it may not be a local path; else `[redacted]`."""

    kind = "hub id"
    _ID = r"(?a)([A-Za-z0-9][\w.-]{0,95})/([A-Za-z0-9][\w.-]{0,95})"

    def clean(self, value: Any, organizations: Collection[str]) -> Any:
        """Return the id, or `[redacted]`."""
        if value is None or value == "":
            return INVALID
        match = re.fullmatch(self._ID, _text(value) or "")
        if match is None or match[1].lower() not in organizations:
            return REDACTED
        return REDACTED if LOCAL_PATHS.contains(match[0]) else match[0]


class Device(SchemaField):
    """A commercial accelerator, such as `NVIDIA H200`, else `other`."""

    kind = "device"
    _MODELS = (
        (
            "NVIDIA",
            r"(?i)nvidia|tesla|geforce|quadro|titan|orin|thor",
            r"(?:GB?|B|H)\d{2,3}|GH200|A(?:100|10G?|16|2|30|40|800)|L(?:4|40S?|20)|T4G?|V100|P(?:100|40|4)|K80"
            r"|RTX (?:PRO )?(?:A\d{4}|\d{4})(?: Ti| SUPER| Ada| Laptop| Blackwell){0,2}|GTX \d{3,4}(?: Ti| SUPER)?"
            r"|TITAN (?:RTX|V|Xp)|Jetson|Orin|Thor",
        ),
        (
            "AMD",
            r"(?i)amd|radeon|instinct",
            r"MI\d{2,3}[AX]?|RX \d{4}(?: XTX| XT| GRE)?|Radeon (?:PRO )?(?:VII|W\d{4})",
        ),
        ("Apple", r"(?i)apple", r"M\d{1,2}(?: Pro| Max| Ultra)?"),
        ("Intel", r"(?i)intel", r"Max \d{4}|Arc [AB]\d{3}|Gaudi ?\d"),
        ("Ascend", r"(?i)ascend", r"910[A-C]?\d?|310P?\d?"),
    )

    def clean(self, value: Any, organizations: Collection[str]) -> Any:
        """Return the maker and the model, and nothing else of the name."""
        text = _text(value)
        if not text:
            return INVALID
        text = re.sub(r"\((?:R|TM)\)|(?<=Ascend)(?=\d)", " ", text)
        text = " ".join(text.split())
        for maker, brands, models in self._MODELS:
            match = re.search(rf"(?a)(?<![A-Za-z0-9])(?:{models})(?![A-Za-z0-9])", text)
            if match is not None and re.search(brands, text):
                return f"{maker} {match[0]}"
        return OTHER


class CodeName(SchemaField):
    """The name of a module, function or type in a known package."""

    kind = "code name"
    _NAME = r"(?a)[A-Za-z_<][\w<>]{0,99}(?:\.[A-Za-z_<][\w<>]{0,99}){0,19}|other code|user exception"

    def clean(self, value: Any, organizations: Collection[str]) -> Any:
        """Return the name if it has the form of one."""
        text = _text(value)
        return text if text and len(text) <= _MAX_TEXT_CHARS and re.fullmatch(self._NAME, text) else INVALID


class LineNumber(SchemaField):
    """A line number in the code of a known package."""

    kind = "line"

    def clean(self, value: Any, organizations: Collection[str]) -> Any:
        """Return the number unchanged."""
        return value if type(value) is int and 0 < value < 1_000_000 else INVALID


class Group(SchemaField):
    """Several fields under one name.

    Args:
        doc: its meaning.
        fields: the fields by name.
    """

    def __init__(self, doc: str, fields: Mapping[str, SchemaField]) -> None:
        super().__init__(doc)
        self.fields = dict(fields)
        self.kind = "group"

    def clean(self, value: Any, organizations: Collection[str]) -> Any:
        """Return the cleaned fields of a dictionary."""
        return self._clean(value, organizations, is_stored=False)

    def clean_stored(self, value: Any, organizations: Collection[str]) -> Any:
        """Return the cleaned fields of a stored dictionary."""
        return self._clean(value, organizations, is_stored=True)

    def _clean(self, value: Any, organizations: Collection[str], *, is_stored: bool) -> Any:
        if not isinstance(value, dict):
            return INVALID
        return clean_fields(self.fields, value, organizations, is_stored=is_stored) or INVALID


class ListOf(SchemaField):
    """Several values of one kind.

    Args:
        doc: its meaning.
        field: the field for each value.
        most: the maximum number of values; the rest is dropped.
    """

    def __init__(self, doc: str, field: SchemaField, most: int = 16) -> None:
        super().__init__(doc)
        self.field = field
        self.most = most
        self.kind = f"list of at most {most}: {getattr(field, 'kind', field)}"

    def clean(self, value: Any, organizations: Collection[str]) -> Any:
        """Return the cleaned values."""
        if isinstance(value, str):
            value = [value]  # some configs write a list of one as a single value
        if type(value) not in (list, tuple):
            return INVALID
        return self._without_invalid(self.field.clean(item, organizations) for item in value[: self.most])

    def clean_stored(self, value: Any, organizations: Collection[str]) -> Any:
        """Return the cleaned values of a stored list."""
        if type(value) is not list:
            return INVALID
        return self._without_invalid(_clean_stored(self.field, item, organizations) for item in value[: self.most])

    @staticmethod
    def _without_invalid(items: Iterable[Any]) -> Any:
        return [item for item in items if item is not INVALID] or INVALID


def describe_kinds() -> dict[str, str]:
    """Return a description of each kind of field: the part of a value that is sent."""
    plain = (Flag, Count, Measure, Seconds, Size, Version, HubId, ModelType, Device, CodeName, LineNumber)
    return {kind.kind: (kind.__doc__ or "").partition("\n")[0] for kind in plain}


FIELD_TYPES = (Flag, Count, Size, Seconds, Measure, Choice, ModelType, Version, HubId, Device, Group, ListOf)
"""The fields that an app may use. Subclasses are rejected, because they could pass on anything."""


def clean_fields(
    fields: Mapping[str, SchemaField],
    values: Mapping[str, Any],
    organizations: Collection[str],
    *,
    is_stored: bool = False,
) -> dict[str, Any]:
    """Return the values that may be sent. A value that makes its field fail is dropped.

    Args:
        fields: the fields by name.
        values: raw values, or values that these fields returned earlier.
        organizations: owners whose models may be named.
        is_stored: whether the fields returned the values earlier and they were read back from the disk.
    """
    clean_values: dict[str, Any] = {}
    for name, field in fields.items():
        clean = functools.partial(_clean_stored, field) if is_stored else field.clean
        try:
            value = clean(values[name], organizations) if name in values else INVALID
        except Exception as error:  # noqa: BLE001 - values and keys may be of any type, with methods that raise
            reraise_from_signal_handler(error)
            continue
        if value is not INVALID:
            clean_values[name] = value
    return clean_values


def _clean_stored(field: SchemaField, value: Any, organizations: Collection[str]) -> Any:
    """Clean a stored value. `[redacted]` passes every field."""
    return REDACTED if value == REDACTED else field.clean_stored(value, organizations)


def describe_fields(fields: Mapping[str, SchemaField], prefix: str = "") -> dict[str, dict[str, str]]:
    """Return the meaning and the kind of each field. Fields of groups have dotted names."""
    rows: dict[str, dict[str, str]] = {}
    for name, field in fields.items():
        kind, path, inner = field.kind, f"{prefix}{name}", field
        if isinstance(field, ListOf) and isinstance(field.field, Group):
            kind, path, inner = f"list of at most {field.most}", f"{path}[]", field.field
        rows[f"{prefix}{name}"] = {"kind": kind, "doc": field.doc}
        if isinstance(inner, Group):
            rows |= describe_fields(inner.fields, f"{path}.")
    return rows


def _real(value: Any) -> float | None:
    """Return a finite number of reasonable size, else None. A tensor is None: reading it could wait for a device."""
    if isinstance(value, str) and re.fullmatch(_NUMBER, value):
        value = float(value)  # YAML parses 3e-4 as a text
    if isinstance(value, bool) or not isinstance(value, (int, float, Real)):
        return None
    number = float(value)
    return number if math.isfinite(number) and abs(number) <= _MAX_NUMBER else None


def _nearest_usual(number: float, *, is_size: bool = False) -> float:
    """Return the usual number that is nearest to a positive number; of two equally near ones the smaller.

    See `USUAL_NUMBERS`. A usual number is its own nearest one, so rounding twice changes nothing.
    """
    if number == 0:
        return 0.0
    # From the decimal text: dividing by powers of ten would turn 0.3 into 0.30000000000000004.
    exponent = int(f"{number:.15e}".partition("e")[2])
    if number >= _LARGE:
        unit = 10.0 ** (exponent - exponent % 3)
        return float(round(_nearest_usual(number / unit) * unit))
    usual: list[float] = []
    if number >= 1:
        octave = math.frexp(number)[1] - 4
        usual += [math.ldexp(digit, octave) for digit in _BINARY]
    if number < 1 or not is_size:
        usual += [float(f"{digit}e{exponent}") for digit in _DECIMAL]
    return min(usual, key=lambda candidate: (abs(candidate - number), candidate))


def _round_coarsely(number: float, *, is_size: bool = False) -> float | int:
    rounded_number = _nearest_usual(number, is_size=is_size) if number >= 0.001 else 0.0
    return int(rounded_number) if rounded_number == int(rounded_number) else rounded_number


def _text(value: Any) -> str | None:
    if isinstance(value, enum.Enum):
        value = value.value
    if type(value).__module__ == "torch" and type(value).__name__ == "dtype":
        value = str(value)
    if not isinstance(value, str):
        return None
    text = str.__str__(value)  # a subclass may override it
    return text if len(text) <= _MAX_TEXT_CHARS else text[:_MAX_TEXT_CHARS] + "…"
