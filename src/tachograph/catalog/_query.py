"""Queries: a parsed expression, and whether it holds for a row.

A comparison is true, false or *unknown*: the row lacks the field, the value is NaN, or the two sides have no order.
Logic has three values, too (Kleene's): ``not`` of unknown is unknown, and a row matches only if the result is true. So
neither ``config.x = 3`` nor ``config.x != 3`` matches a run without ``config.x``.

Expressions come from addresses and requests. Nothing is executed, and the cost of regular expressions is bounded.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import msgspec

from tachograph.catalog._pattern import PatternError, SafePattern
from tachograph.catalog._syntax import (
    MAX_CHARS,
    AllOf,
    AnyOf,
    Between,
    Comparison,
    Has,
    IsKind,
    Node,
    NotOf,
    OneOf,
    Parser,
    QueryError,
    Word,
    print_field,
    print_query,
)
from tachograph.catalog._values import Ago, Period, Value, as_number, meaning_of

__all__ = ["Query", "TableRow", "parse_query"]

SEARCHED_FIELDS = ("name", "display_name", "tags", "note")
"""The fields in which a bare word is looked for."""
_WHOLE_FIELDS = frozenset({"tags", "state"})
"""Fields for which ``:`` means equal; for others it means contains."""


class TableRow(Protocol):
    """The fields of a run by their dotted names."""

    def get(self, field: str, /) -> Any:
        """Return the value of a field, or None if the run lacks it."""
        ...


class Query(msgspec.Struct, frozen=True):
    """A parsed expression."""

    text: str
    tree: Node
    fields: dict[str, int]
    """The fields that it compares, each with the position of its first use."""
    tested: frozenset[str] = frozenset()
    """The fields in ``has(…)``, which need not exist."""

    def __str__(self) -> str:
        return print_query(self.tree)

    @property
    def is_relative(self) -> bool:
        """Whether it depends on the current time."""
        return _is_relative(self.tree)

    def matcher(self, now: float | None = None) -> Callable[[TableRow], bool]:
        """Return a function that tells whether a row matches.

        Args:
            now: the time that relative times such as ``-7d`` refer to; the current one by default.

        Raises:
            QueryError: by the function, if a regular expression takes too long.
        """
        test = _compile(self.tree, time.time() if now is None else now)

        def matches(row: TableRow) -> bool:
            try:
                return test(row) is True
            except PatternError as error:
                raise QueryError(str(error), self.text, max(0, self.text.find("~"))) from None

        return matches

    def unknown_fields(self, field_names: Iterable[str]) -> list[QueryError]:
        """Return an error for each field that is not among the known ones; its message names similar ones."""
        names = set(field_names)
        missing = {field: position for field, position in self.fields.items() if field not in names}
        return [
            QueryError(f"no run has the field {field!r}{_near(field, names)}", self.text, position)
            for field, position in missing.items()
        ]


def _is_relative(tree: Node) -> bool:
    if isinstance(tree, NotOf):
        return _is_relative(tree.part)
    if isinstance(tree, (AllOf, AnyOf)):
        return any(map(_is_relative, tree.parts))
    if isinstance(tree, OneOf):
        return any(isinstance(meaning_of(value), Ago) for value in tree.values)
    if isinstance(tree, Between):
        return isinstance(meaning_of(tree.low), Ago) or isinstance(meaning_of(tree.high), Ago)
    return isinstance(tree, Comparison) and isinstance(meaning_of(tree.value), Ago)


def parse_query(text: str) -> Query:
    """Parse an expression; an empty one matches every run.

    Raises:
        QueryError: if it is invalid; the message says where and what was expected.
    """
    if len(text) > MAX_CHARS:
        raise QueryError(f"an expression has at most {MAX_CHARS} characters", text, MAX_CHARS)
    parser = Parser(text)
    tree = parser.parse()
    return Query(text, tree, parser.fields, frozenset(parser.tested))


def _near(field: str, field_names: Iterable[str]) -> str:
    """Return a hint with up to three known fields that are similar to, or end like, a field."""
    import difflib

    names = sorted(field_names)
    ending = [name for name in names if name.endswith(f".{field}") or name.startswith(f"{field}.")]
    close = difflib.get_close_matches(field, names, n=3, cutoff=0.6)
    similar_names = list(dict.fromkeys([*ending[:3], *close]))[:3]
    texts = [print_field(name) if name.isprintable() else repr(name) for name in similar_names]
    return f"; did you mean {' or '.join(texts)}?" if texts else ""


# Evaluation ----------------------------------------------------------------------------------------------------------

_Test = Callable[[TableRow], "bool | None"]


def _compile(tree: Node, now: float) -> _Test:
    """Return a function that gives True, False or None (unknown) for a row."""
    if isinstance(tree, Word):
        return _word_test(tree.text)
    if isinstance(tree, Has):
        return _has_test(tree.field)
    if isinstance(tree, IsKind):
        return _kind_test(tree.field, tree.kind)
    if isinstance(tree, NotOf):
        return _not_test(_compile(tree.part, now))
    if isinstance(tree, AllOf):
        return _all_test([_compile(part, now) for part in tree.parts])
    if isinstance(tree, AnyOf):
        return _any_test([_compile(part, now) for part in tree.parts])
    if isinstance(tree, OneOf):
        return _any_test([_comparison_test(tree.field, "=", value, now) for value in tree.values])
    if isinstance(tree, Between):
        bounds = ((">=", tree.low), ("<=", tree.high))
        return _all_test([_comparison_test(tree.field, operator, value, now) for operator, value in bounds])
    return _comparison_test(tree.field, tree.operator, tree.value, now)


def _word_test(text: str) -> _Test:
    needle = text.casefold()

    def test(row: TableRow) -> bool:
        for field in SEARCHED_FIELDS:
            value = row.get(field)
            texts = value if isinstance(value, (list, tuple)) else (value,)
            if any(isinstance(item, str) and needle in item.casefold() for item in texts):
                return True
        return False

    return test


def _has_test(field: str) -> _Test:
    return lambda row: row.get(field) is not None


def _kind_test(field: str, kind: str) -> _Test:
    check = math.isnan if kind == "nan" else math.isinf

    def test(row: TableRow) -> bool | None:
        value = row.get(field)
        return check(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None

    return test


def _not_test(part: _Test) -> _Test:
    def test(row: TableRow) -> bool | None:
        outcome = part(row)
        return None if outcome is None else not outcome

    return test


def _all_test(parts: Sequence[_Test]) -> _Test:
    def test(row: TableRow) -> bool | None:
        result: bool | None = True
        for part in parts:
            outcome = part(row)
            if outcome is False:
                return False
            result = None if outcome is None else result
        return result

    return test


def _any_test(parts: Sequence[_Test]) -> _Test:
    def test(row: TableRow) -> bool | None:
        result: bool | None = False
        for part in parts:
            outcome = part(row)
            if outcome:
                return True
            result = None if outcome is None else result
        return result

    return test


def _comparison_test(field: str, operator: str, value: Value, now: float) -> _Test:
    compare = _value_test(field, operator, value, now)
    is_negative = operator == "!="

    def test(row: TableRow) -> bool | None:
        row_value = row.get(field)
        if row_value is None:
            return None
        if not isinstance(row_value, (list, tuple)):
            return compare(row_value)
        # Of a list, some item must compare; none may be equal for `!=`.
        results = [compare(item) for item in row_value]
        return all(result is not False for result in results) if is_negative else any(results)

    return test


def _value_test(field: str, operator: str, value: Value, now: float) -> Callable[[Any], bool | None]:
    """Return a function that compares the value of a field, which is not a list, with a value."""
    meaning = meaning_of(value)
    if operator == "~":
        pattern = SafePattern(value.text)
        return lambda row_value: pattern.matches(_text_of(row_value))
    is_contained = operator == ":" and field not in _WHOLE_FIELDS
    if operator == ":" and field in _WHOLE_FIELDS:
        folded_text = value.text.casefold()
        return lambda row_value: _text_of(row_value).casefold() == folded_text
    operator = "=" if operator == ":" else operator
    if isinstance(meaning, Ago):
        meaning = Period(now - meaning.seconds, now - meaning.seconds)
    if isinstance(meaning, Period):
        return _period_test(operator, meaning)

    def compare(row_value: Any) -> bool | None:
        if isinstance(row_value, float) and math.isnan(row_value):
            return None
        if is_contained and isinstance(row_value, str):
            return value.text.casefold() in row_value.casefold()
        return _compare(row_value, operator, meaning, value.text)

    return compare


def _period_test(operator: str, period: Period) -> Callable[[Any], bool | None]:
    first, end = period.first, period.end
    tests: dict[str, Callable[[float], bool]] = {
        "=": lambda time: first <= time < end or time == first,
        "!=": lambda time: not (first <= time < end or time == first),
        "<": lambda time: time < first,
        "<=": lambda time: time < end or time == first,
        ">": lambda time: time >= end and time != first,
        ">=": lambda time: time >= first,
    }
    test = tests[operator]
    return lambda time: test(time) if _is_number(time) and not math.isnan(time) else None


def _compare(value: Any, operator: str, operand: float | bool | str, text: str) -> bool | None:
    """Compare as numbers if both sides are numbers, else as texts; unknown if that makes no sense."""
    if isinstance(value, bool) or isinstance(operand, bool):
        is_equal = _text_of(value).lower() == text.lower()
        return {"=": is_equal, "!=": not is_equal}.get(operator)
    number = value if _is_number(value) else as_number(value) if isinstance(value, str) else None
    other_number = as_number(text) if isinstance(operand, str) else operand
    if number is not None and other_number is not None:
        return None if math.isnan(number) or math.isnan(other_number) else _ORDER[operator](number, other_number)
    if operator in {"=", "!="}:
        return _ORDER[operator](_text_of(value), text)
    # Texts have an order, but a text and a number do not.
    return _ORDER[operator](value, text) if isinstance(value, str) and other_number is None else None


_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda first, second: first == second,
    "!=": lambda first, second: first != second,
    "<": lambda first, second: first < second,
    "<=": lambda first, second: first <= second,
    ">": lambda first, second: first > second,
    ">=": lambda first, second: first >= second,
}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _text_of(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.12g}" if isinstance(value, float) else str(value)
