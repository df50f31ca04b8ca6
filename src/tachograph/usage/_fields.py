"""What may stand in an event: typed fields, none of which lets a free text or an exact number through.

Each field takes what it understands and makes something coarse of it. What it does not understand is left out.
"""

from __future__ import annotations

import enum
import functools
import math
import os
import re
import sys
from collections.abc import Collection, Iterable, Mapping
from numbers import Real
from typing import Any, Final

from tachograph.usage._folder import START

__all__ = [
    "DROPPED",
    "FIELD_TYPES",
    "REDACTED",
    "Choice",
    "CodeName",
    "Count",
    "Device",
    "Field",
    "Flag",
    "Group",
    "HubId",
    "Line",
    "ListOf",
    "Measure",
    "ModelType",
    "Seconds",
    "Size",
    "Version",
    "clean_fields",
    "described",
    "kinds",
]


class _Dropped(enum.Enum):
    DROPPED = enum.auto()


DROPPED: Final = _Dropped.DROPPED
"""What a field makes of a value that it does not understand."""
REDACTED = "[redacted]"
OTHER = "other"

_LONGEST_TEXT = 200
_LARGEST = 1e18
_NUMBER = r"(?a)[+-]?\d{1,16}(?:\.\d{0,16})?(?:[eE][+-]?\d{1,2})?"
_SMALLEST = 1e-12
_GIB = 1 << 30


class Field:
    """A field of an event.

    Args:
        doc: what it says, for the documentation.
    """

    kind = ""
    """What is sent of a value, in words for the documentation."""

    def __init__(self, doc: str) -> None:
        self.doc = doc

    def clean(self, value: Any, organizations: Collection[str]) -> Any:
        """Return what may be sent of a value, or `DROPPED`."""
        raise NotImplementedError

    def clean_again(self, value: Any, organizations: Collection[str]) -> Any:
        """Return what may be sent of what this field made, or of whatever stands in its place on the disk."""
        return self.clean(value, organizations)


class Flag(Field):
    """True or false."""

    kind = "flag"

    def clean(self, value: Any, organizations: Collection[str]) -> Any:
        """Return a bool as it is."""
        if isinstance(value, str):  # as some configs have it
            value = {"true": True, "false": False}.get(value.strip().lower())
        return value if isinstance(value, bool) else DROPPED


class Count(Field):
    """A number of things, of which only the first digit is kept: 4096 is sent as 4000."""

    kind = "count"

    def clean(self, value: Any, organizations: Collection[str]) -> Any:
        """Return the number with zeros after its first digit."""
        number = _real(value)
        return DROPPED if number is None or number < 0 else int(_first_digit(math.floor(number)))


class Size(Field):
    """Bytes, sent as GiB of which only the first digit is kept: of 139.8 GiB, 100."""

    kind = "GiB"

    def clean(self, value: Any, organizations: Collection[str]) -> Any:
        """Return bytes as coarse GiB."""
        number = _real(value)
        return DROPPED if number is None or number < 0 else _coarse(number / _GIB)

    def clean_again(self, value: Any, organizations: Collection[str]) -> Any:
        """Return coarse GiB."""
        return Seconds("").clean(value, organizations)


class Seconds(Field):
    """A length of time, of which only the first digit is kept: 754 is sent as 700."""

    kind = "seconds"

    def clean(self, value: Any, organizations: Collection[str]) -> Any:
        """Return the coarse length."""
        number = _real(value)
        return DROPPED if number is None or number < 0 else _coarse(number)


class Measure(Field):
    """A number in two significant digits: 0.01234 is sent as 0.012. `NaN` and infinities are sent as words."""

    kind = "number"

    def clean(self, value: Any, organizations: Collection[str]) -> Any:
        """Return the rounded number."""
        if isinstance(value, Real) and not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if float(value) > 0 else "-Infinity"
        number = _real(value)
        return DROPPED if number is None else float(f"{number:.1e}") if abs(number) >= _SMALLEST else 0.0

    def clean_again(self, value: Any, organizations: Collection[str]) -> Any:
        """Return the number, or the word for none."""
        return value if value in ("NaN", "Infinity", "-Infinity") else self.clean(value, organizations)


class Choice(Field):
    """One of the words that are listed, else `other`.

    Args:
        doc: what it says.
        *words: those that may be sent.
        also: other words for some of them.
    """

    def __init__(self, doc: str, *words: str, also: Mapping[str, str] | None = None) -> None:
        super().__init__(doc)
        self.words = {str(word).lower(): word for word in (*words, *(also or {}).values())}
        self._also = {other.lower(): word for other, word in (also or {}).items()}
        self.kind = f"one of {', '.join(map(str, [*words, OTHER]))}"

    def clean(self, value: Any, organizations: Collection[str]) -> Any:
        """Return the word, as it is spelt here."""
        text = (_text(value) or "").strip().lower()
        return DROPPED if not text else self.words.get(text) or self._also.get(text) or OTHER


class ModelType(Field):
    """A kind of model that transformers itself knows, such as `llama`, else `other`."""

    kind = "model type"

    def clean(self, value: Any, organizations: Collection[str]) -> Any:
        """Return the type if it is no invention of the user's."""
        text = _text(value)
        if not text:
            return DROPPED
        auto = sys.modules.get("transformers.models.auto.configuration_auto")
        return text if text in getattr(auto, "CONFIG_MAPPING_NAMES", {}) else OTHER

    def clean_again(self, value: Any, organizations: Collection[str]) -> Any:
        """Return the type; transformers, which knows them, need not be there any more."""
        text = _text(value)
        return text if text and re.fullmatch(r"(?a)[\w-]{1,60}", text) else DROPPED


class Version(Field):
    """A version; what was appended to it is left out, unless it names a build for an accelerator: `2.13.0+cu128`."""

    kind = "version"
    # Three numbers at most: with a fourth it could be the address of a machine.
    _VERSION = (
        r"(\d{1,4}(?:\.\d{1,4}){0,2}(?:(?:a|b|rc)\d{1,4})?(?:\.post\d{1,4})?(?:\.dev\d{1,8})?)"
        r"(\+(?:cpu|cu\d{2,3}|rocm\d(?:\.\d){0,2}|xpu))?(?:\+[\w.]*)?"
    )

    def clean(self, value: Any, organizations: Collection[str]) -> Any:
        """Return the public part of a version."""
        match = re.fullmatch(self._VERSION, _text(value) or "")
        return DROPPED if match is None else match[1] + (match[2] or "")


class HubId(Field):
    """An id on the Hub, if its owner is one of `organizations` and there is no such folder; else `[redacted]`."""

    kind = "hub id"
    _ID = r"(?a)([A-Za-z0-9][\w.-]{0,95})/([A-Za-z0-9][\w.-]{0,95})"

    def clean(self, value: Any, organizations: Collection[str]) -> Any:
        """Return the id, or that there was one."""
        if value is None or value == "":
            return DROPPED
        match = re.fullmatch(self._ID, _text(value) or "")
        if match is None or match[1].lower() not in organizations:
            return REDACTED
        is_local = os.path.lexists(match[0]) or os.path.lexists(os.path.join(START, match[0]))
        return REDACTED if is_local else match[0]


class Device(Field):
    """The model of an accelerator, if it is one that is sold, such as `NVIDIA H200`, else `other`."""

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
        """Return maker and model in our words, and nothing else of the name."""
        text = _text(value)
        if not text:
            return DROPPED
        text = re.sub(r"\((?:R|TM)\)|(?<=Ascend)(?=\d)", " ", text)
        text = " ".join(text.split())
        for maker, brands, models in self._MODELS:
            found = re.search(rf"(?a)(?<![A-Za-z0-9])(?:{models})(?![A-Za-z0-9])", text)
            if found is not None and re.search(brands, text):
                return f"{maker} {found[0]}"
        return OTHER


class CodeName(Field):
    """The name of a module, function or type in the code of a known package."""

    kind = "code name"
    _NAME = r"(?a)[A-Za-z_<][\w<>]{0,99}(?:\.[A-Za-z_<][\w<>]{0,99}){0,19}|other code|user exception"

    def clean(self, value: Any, organizations: Collection[str]) -> Any:
        """Return the name if it can be one."""
        text = _text(value)
        return text if text and len(text) <= _LONGEST_TEXT and re.fullmatch(self._NAME, text) else DROPPED


class Line(Field):
    """The number of a line in the code of a known package."""

    kind = "line"

    def clean(self, value: Any, organizations: Collection[str]) -> Any:
        """Return the number as it is."""
        return value if type(value) is int and 0 < value < 1_000_000 else DROPPED


class Group(Field):
    """Several fields under one name.

    Args:
        doc: what it says.
        fields: those in it.
    """

    def __init__(self, doc: str, fields: Mapping[str, Field]) -> None:
        super().__init__(doc)
        self.fields = dict(fields)
        self.kind = "group"

    def clean(self, value: Any, organizations: Collection[str]) -> Any:
        """Return what the fields leave of a mapping."""
        return self._cleaned(value, organizations, again=False)

    def clean_again(self, value: Any, organizations: Collection[str]) -> Any:
        """Return what the fields leave of what they made."""
        return self._cleaned(value, organizations, again=True)

    def _cleaned(self, value: Any, organizations: Collection[str], *, again: bool) -> Any:
        if not isinstance(value, dict):
            return DROPPED
        return clean_fields(self.fields, value, organizations, again=again) or DROPPED


class ListOf(Field):
    """Several values of one kind.

    Args:
        doc: what it says.
        field: what each is.
        most: how many are sent at most.
    """

    def __init__(self, doc: str, field: Field, most: int = 16) -> None:
        super().__init__(doc)
        self.field = field
        self.most = most
        self.kind = f"list, {most} at most, of: {getattr(field, 'kind', field)}"

    def clean(self, value: Any, organizations: Collection[str]) -> Any:
        """Return what the field leaves of each value."""
        if isinstance(value, str):
            value = [value]  # as a config has it that names only one
        if type(value) not in (list, tuple):
            return DROPPED
        return self._understood(self.field.clean(item, organizations) for item in value[: self.most])

    def clean_again(self, value: Any, organizations: Collection[str]) -> Any:
        """Return what the field leaves of what it made of each."""
        if type(value) is not list:
            return DROPPED
        return self._understood(_again(self.field, item, organizations) for item in value[: self.most])

    @staticmethod
    def _understood(items: Iterable[Any]) -> Any:
        return [item for item in items if item is not DROPPED] or DROPPED


def kinds() -> dict[str, str]:
    """Return what each kind of field lets through, in words."""
    plain = (Flag, Count, Measure, Seconds, Size, Version, HubId, ModelType, Device, CodeName, Line)
    return {kind.kind: (kind.__doc__ or "").partition("\n")[0] for kind in plain}


FIELD_TYPES = (Flag, Count, Size, Seconds, Measure, Choice, ModelType, Version, HubId, Device, Group, ListOf)
"""Those an app may use. Types of its own could let anything through."""


def clean_fields(
    fields: Mapping[str, Field], values: Mapping[str, Any], organizations: Collection[str], *, again: bool = False
) -> dict[str, Any]:
    """Return what may be sent of some values. One that makes its field fail costs itself and nothing more.

    Args:
        fields: what may be sent, by name.
        values: as they were given, or as these fields made them.
        organizations: owners whose models may be named.
        again: whether the fields made them.
    """
    cleaned: dict[str, Any] = {}
    for name, field in fields.items():
        clean = functools.partial(_again, field) if again else field.clean
        try:
            value = clean(values[name], organizations) if name in values else DROPPED
        except Exception:  # noqa: BLE001, S112 - a value, or a key, is of a type that somebody else wrote
            continue
        if value is not DROPPED:
            cleaned[name] = value
    return cleaned


def _again(field: Field, value: Any, organizations: Collection[str]) -> Any:
    """Return what may be sent of what a field made, or that the second net has been there."""
    return REDACTED if value == REDACTED else field.clean_again(value, organizations)


def described(fields: Mapping[str, Field], prefix: str = "") -> dict[str, dict[str, str]]:
    """Return what each field says and what is sent of it, in words; those of groups by dotted names."""
    rows: dict[str, dict[str, str]] = {}
    for name, field in fields.items():
        inner = field.field if isinstance(field, ListOf) else field
        is_list = isinstance(field, ListOf) and isinstance(inner, Group)
        if isinstance(inner, Group):
            rows[f"{prefix}{name}"] = {"kind": f"list, {field.most} at most" if is_list else "group", "doc": field.doc}  # type: ignore[attr-defined]
            rows |= described(inner.fields, f"{prefix}{name}{'[]' if is_list else ''}.")
        else:
            rows[f"{prefix}{name}"] = {"kind": field.kind, "doc": field.doc}
    return rows


def _real(value: Any) -> float | None:
    """Return a number that is finite and of a sane size. A tensor is none: reading it could wait for a device."""
    if isinstance(value, str) and re.fullmatch(_NUMBER, value):
        value = float(value)  # YAML takes 3e-4 for a text
    if isinstance(value, bool) or not isinstance(value, (int, float, Real)):
        return None
    number = float(value)
    return number if math.isfinite(number) and abs(number) <= _LARGEST else None


def _first_digit(number: float) -> float:
    if number == 0:
        return 0.0
    mantissa, exponent = f"{number:.15e}".split("e")
    return float(f"{mantissa[0]}e{exponent}")


def _coarse(number: float) -> float | int:
    coarse = _first_digit(number) if number >= 0.001 else 0.0
    return int(coarse) if coarse >= 1 or coarse == 0 else coarse


def _text(value: Any) -> str | None:
    if isinstance(value, enum.Enum):
        value = value.value
    if type(value).__module__ == "torch" and type(value).__name__ == "dtype":
        value = str(value)
    if not isinstance(value, str):
        return None
    text = str.__str__(value)  # whatever a subclass of it says
    return text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT] + "…"
