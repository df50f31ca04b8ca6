"""The syntax of the language that selects runs: its tree, its parser, and how a tree is printed.

    state:crashed tag:paper config.lr>=1e-4 val_loss.min<0.3 started>-14d (host:node1 or host:node2) -tag:debug

    expr  := and ("or" and)*
    and   := not (["and"] not)*
    not   := ("not" | "-") not | "(" expr ")" | term
    term  := WORD | field OP value | field "in" "(" value ("," value)* ")" | field "between" value "and" value
           | field "is" ["not"] ("nan" | "inf") | "has" "(" field ")"
    OP    := "=" | "!=" | "<" | "<=" | ">" | ">=" | "~" | ":"

The parser reads characters rather than tokens, because the same character means different things in different places:
the first ``-`` of ``-tag:debug`` negates, the ``-`` of ``started>-7d`` is a sign. Length and depth are bounded.
"""

from __future__ import annotations

import msgspec

from tachograph.catalog._pattern import PatternError, SafePattern
from tachograph.catalog._values import Ago, Period, Value, meaning_of
from tachograph.exceptions import TachographError

__all__ = [
    "AllOf",
    "AnyOf",
    "Between",
    "Comparison",
    "Has",
    "IsKind",
    "Node",
    "NotOf",
    "OneOf",
    "Parser",
    "QueryError",
    "Word",
    "print_field",
    "print_query",
]

MAX_CHARS = 4_000
_MAX_NESTING = 50

TIME_FIELDS = frozenset({"started", "ended", "updated"})
ALIASES = {"tag": "tags", "run": "name", "step": "steps"}

_KEYWORDS = frozenset({"and", "or", "not", "in", "has", "between", "is"})
_OPERATORS = ("!=", "<=", ">=", "=", "<", ">", "~", ":")


class QueryError(TachographError):
    """An expression that selects runs is invalid; `position` is the offset of the character at fault."""

    def __init__(self, message: str, text: str, position: int) -> None:
        self.reason = message
        self.text = text
        self.position = position
        super().__init__(f"{message}\n  {_excerpt(text, position)}")


def _excerpt(text: str, position: int) -> str:
    """Return the part of a text around a position, and a line that points at it."""
    first = max(0, position - 30)
    excerpt = "".join(character if character.isprintable() else " " for character in text[first : position + 30])
    before, after = "…" if first else "", "…" if position + 30 < len(text) else ""
    return f"{before}{excerpt}{after}\n  {' ' * (len(before) + position - first)}^"


# The tree ------------------------------------------------------------------------------------------------------------


class Word(msgspec.Struct, frozen=True, tag="word"):
    """A text to look for in names, tags and notes."""

    text: str


class Comparison(msgspec.Struct, frozen=True, tag="compare"):
    """A field compared with a value."""

    field: str
    operator: str
    value: Value


class Between(msgspec.Struct, frozen=True, tag="between"):
    """A field within two bounds, which belong to the range."""

    field: str
    low: Value
    high: Value


class OneOf(msgspec.Struct, frozen=True, tag="in"):
    """A field that equals one of several values."""

    field: str
    values: tuple[Value, ...]


class IsKind(msgspec.Struct, frozen=True, tag="is"):
    """A number that is NaN or infinite."""

    field: str
    kind: str


class Has(msgspec.Struct, frozen=True, tag="has"):
    """A field that is present."""

    field: str


class NotOf(msgspec.Struct, frozen=True, tag="not"):
    """The opposite of an expression."""

    part: Node


class AllOf(msgspec.Struct, frozen=True, tag="and"):
    """Several expressions that must all be true; none at all is true."""

    parts: tuple[Node, ...]


class AnyOf(msgspec.Struct, frozen=True, tag="or"):
    """Several expressions of which one must be true."""

    parts: tuple[Node, ...]


Node = Word | Comparison | Between | OneOf | IsKind | Has | NotOf | AllOf | AnyOf


# Parsing -------------------------------------------------------------------------------------------------------------


def _is_word_character(character: str) -> bool:
    return character != "" and not character.isspace() and character not in '()",`=!<>~:'


class Parser:
    """A recursive-descent parser over the characters of an expression."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._nesting = 0
        self.fields: dict[str, int] = {}
        self.tested: set[str] = set()

    def parse(self) -> Node:
        self._skip_space()
        if not self._peek():
            return AllOf(())
        tree = self._any_of()
        if self._peek():
            raise self._error("expected a space, and, or, or the end")
        return tree

    # Characters

    def _peek(self, length: int = 1) -> str:
        return self._text[self._position : self._position + length]

    def _skip_space(self) -> None:
        while self._peek().isspace():
            self._position += 1

    def _error(self, message: str, position: int | None = None) -> QueryError:
        return QueryError(message, self._text, self._position if position is None else position)

    def _next_keyword(self) -> str:
        """Return the keyword at the position, or an empty text; the position does not change."""
        end = self._position
        while _is_word_character(self._text[end : end + 1]):
            end += 1
        word = self._text[self._position : end].lower()
        return word if word in _KEYWORDS else ""

    def _accept_keyword(self, *words: str) -> str:
        keyword = self._next_keyword()
        if keyword not in words:
            return ""
        self._position += len(keyword)
        self._skip_space()
        return keyword

    def _accept(self, symbol: str) -> bool:
        if self._peek(len(symbol)) != symbol:
            return False
        self._position += len(symbol)
        self._skip_space()
        return True

    def _operator(self) -> str:
        for operator in _OPERATORS:
            if self._accept(operator):
                return operator
        return ""

    # Grammar

    def _any_of(self) -> Node:
        parts = [self._all_of()]
        while self._accept_keyword("or"):
            parts.append(self._all_of())
        return parts[0] if len(parts) == 1 else AnyOf(tuple(parts))

    def _all_of(self) -> Node:
        parts = [self._negation()]
        while self._accept_keyword("and") or (self._peek() not in {"", ")"} and self._next_keyword() != "or"):
            parts.append(self._negation())
        return parts[0] if len(parts) == 1 else AllOf(tuple(parts))

    def _negation(self) -> Node:
        self._nesting += 1
        if self._nesting > _MAX_NESTING:
            raise self._error("too many nested parts")
        try:
            is_minus = self._peek() == "-" and not self._text[self._position + 1 : self._position + 2].isspace()
            if self._accept_keyword("not") or (is_minus and self._accept("-")):
                return NotOf(self._negation())
            if self._accept("("):
                inner = self._any_of()
                if not self._accept(")"):
                    raise self._error("expected )")
                return inner
            return self._term()
        finally:
            self._nesting -= 1

    def _term(self) -> Node:
        start = self._position
        if self._accept_keyword("has"):
            if not self._accept("("):
                raise self._error("expected ( after has, as in has(config.lr)")
            name = self._field()
            if not self._accept(")"):
                raise self._error("expected )")
            self.tested.add(name)
            return Has(name)
        if self._next_keyword():
            raise self._error(f'expected a word or a field; write "{self._next_keyword()}" to search for this word')
        if self._peek() == '"':
            return Word(self._quoted_text())
        name, is_plain = self._name(start)
        operator = self._operator()
        keyword = "" if operator else self._accept_keyword("in", "between", "is")
        if not operator and not keyword:
            if not is_plain:
                raise self._error("expected a comparison after the field, such as >= 3")
            return Word(name)
        field = ALIASES.get(name, name)
        self.fields.setdefault(field, start)
        if keyword == "in":
            return OneOf(field, self._list(field))
        if keyword == "between":
            low = self._value(field, "<")
            if not self._accept_keyword("and"):
                raise self._error("expected and, as in between 1 and 2")
            return Between(field, low, self._value(field, "<"))
        if keyword == "is":
            return self._kind(field)
        return Comparison(field, operator, self._value(field, operator))

    def _field(self) -> str:
        name, _ = self._name(self._position)
        return ALIASES.get(name, name)

    def _name(self, start: int) -> tuple[str, bool]:
        """Read a field such as ``config.lr`` or `` `loss/kl`.last``; also return whether it had no backticks."""
        name, is_plain = "", True
        while True:
            if self._peek() == "`":
                name += self._backtick_name()
                is_plain = False
            elif _is_word_character(self._peek()):
                name += self._peek()
                self._position += 1
            else:
                break
        if not name:
            raise self._error("expected a word or a field", start)
        self._skip_space()
        return name, is_plain

    def _backtick_name(self) -> str:
        start = self._position
        self._position += 1
        name = ""
        while True:
            end = self._text.find("`", self._position)
            if end < 0:
                raise self._error("expected ` at the end of the name", start)
            name += self._text[self._position : end]
            self._position = end + 1
            if self._peek() != "`":  # a doubled one stands for itself
                return name
            name += "`"
            self._position += 1

    def _quoted_text(self) -> str:
        start = self._position
        self._position += 1
        text = ""
        while (character := self._peek()) != '"':
            if not character:
                raise self._error('expected " at the end of the text', start)
            if character == "\\" and self._peek(2)[1:] in {'"', "\\"}:
                self._position += 1
                character = self._peek()
            text += character
            self._position += 1
        self._position += 1
        self._skip_space()
        return text

    def _list(self, field: str) -> tuple[Value, ...]:
        if not self._accept("("):
            raise self._error("expected ( after in, as in host in (node1, node2)")
        values = [self._value(field, "=")]
        while self._accept(","):
            values.append(self._value(field, "="))
        if not self._accept(")"):
            raise self._error("expected , or )")
        return tuple(values)

    def _kind(self, field: str) -> Node:
        is_not = bool(self._accept_keyword("not"))
        start = self._position
        while _is_word_character(self._peek()):
            self._position += 1
        kind = self._text[start : self._position].lower()
        if kind not in {"nan", "inf"}:
            raise self._error("expected nan or inf after is", start)
        self._skip_space()
        return NotOf(IsKind(field, kind)) if is_not else IsKind(field, kind)

    def _value(self, field: str, operator: str) -> Value:
        start = self._position
        if self._peek() == '"':
            value = Value(self._quoted_text(), is_quoted=True)
        else:
            # A value may contain what separates fields from values, as in a date or in `command:--lr=1`.
            while _is_word_character(self._peek()) or (self._position > start and self._peek() in {":", "="}):
                self._position += 1
            value = Value(self._text[start : self._position])
            if not value.text:
                hint = "; quote a regular expression that has parentheses" if operator == "~" else ""
                raise self._error(f"expected a value after {operator}{hint}", start)
            if self._peek() in {"<", ">", "!", "~"}:
                raise self._error("expected a space: a comparison has one field and one value")
            self._skip_space()
        if operator == "~":
            try:
                SafePattern(value.text)
            except PatternError as error:
                raise self._error(str(error), start + value.is_quoted + error.offset) from None
        elif operator not in {"=", ":", "!="} and not value.is_quoted:
            self._check_time(field, value, start)
        return value

    def _check_time(self, field: str, value: Value, start: int) -> None:
        meaning = meaning_of(value)
        if field in TIME_FIELDS and not isinstance(meaning, (Period, Ago)):
            raise self._error("expected a date such as 2026-05-01, or a time ago such as -7d", start)
        if field not in TIME_FIELDS and isinstance(meaning, Ago) and field.partition(".")[0] != "custom":
            raise self._error(f"{value.text} means a time ago, and {field} is not a time", start)


# Printing ------------------------------------------------------------------------------------------------------------


def print_query(tree: Node) -> str:
    """Return the expression of a tree; parsing it gives the same tree."""
    if isinstance(tree, AllOf):
        return " ".join(map(_print_part, tree.parts))
    if isinstance(tree, AnyOf):
        return " or ".join(
            f"({print_query(part)})" if isinstance(part, AnyOf) else print_query(part) for part in tree.parts
        )
    return _print_part(tree)


def _print_part(tree: Node) -> str:
    if isinstance(tree, (AllOf, AnyOf)):
        return f"({print_query(tree)})"
    if isinstance(tree, NotOf):
        return f"not {_print_part(tree.part)}"
    if isinstance(tree, Word):
        return tree.text if _is_plain(tree.text) else _print_text(tree.text)
    if isinstance(tree, Has):
        return f"has({print_field(tree.field)})"
    field = print_field(tree.field)
    if isinstance(tree, IsKind):
        return f"{field} is {tree.kind}"
    if isinstance(tree, Between):
        return f"{field} between {_print_value(tree.low)} and {_print_value(tree.high)}"
    if isinstance(tree, OneOf):
        return f"{field} in ({', '.join(map(_print_value, tree.values))})"
    return f"{field}{tree.operator}{_print_value(tree.value)}"


def _is_plain(text: str) -> bool:
    is_word = bool(text) and all(map(_is_word_character, text))
    return is_word and not text.startswith("-") and text.lower() not in _KEYWORDS


def print_field(field: str) -> str:
    """Return a field as it is written in an expression."""
    return field if _is_plain(field) else "`" + field.replace("`", "``") + "`"


def _print_value(value: Value) -> str:
    return _print_text(value.text) if value.is_quoted else value.text


def _print_text(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
