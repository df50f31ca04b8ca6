"""Regular expressions that cannot hang.

Python's `re` backtracks: a pattern such as ``(a+)+b`` takes longer than the age of the universe on a line of a's. A
pattern here is parsed first, into a subset without look-around and back-references. The parser counts the places where
the matcher has a choice. A text for which even the worst combination of choices is cheap is matched by `re`. Any other
text is matched by following all choices at once (Thompson's construction), in time proportional to the length of the
text times the size of the pattern. `MAX_STEPS` bounds the sum over all texts of a query.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

__all__ = ["PatternError", "SafePattern"]

MAX_STEPS = 2_000_000
_MAX_CHEAP_STEPS = 100_000
_MAX_STATES = 1_000
_MAX_PATTERN_CHARS = 500
_MAX_TEXT_CHARS = 10_000
_MAX_DEPTH = 50

Test = Callable[[str], bool]


class PatternError(Exception):
    """A regular expression is invalid, not supported or too expensive; `offset` is the place in the pattern."""

    def __init__(self, message: str, offset: int = 0) -> None:
        super().__init__(message)
        self.offset = offset


class _Node(NamedTuple):
    """A part of a pattern: its kind, its parts, a test for one character, and bounds of a repetition."""

    kind: str
    parts: tuple[_Node, ...] = ()
    test: Test | None = None
    low: int = 0
    high: int | None = None


class SafePattern:
    """A compiled regular expression, searched anywhere in a text.

    Raises:
        PatternError: if the pattern is invalid or has an unsupported element.
    """

    def __init__(self, pattern: str) -> None:
        if len(pattern) > _MAX_PATTERN_CHARS:
            raise PatternError(f"a regular expression has at most {_MAX_PATTERN_CHARS} characters")
        parser = _PatternParser(pattern)
        self._num_choices = parser.num_choices
        self._program = _Program(parser.tree)
        self._num_steps = 0
        self._re: re.Pattern[str] | None = None
        if not parser.is_nested:
            try:
                self._re = re.compile(pattern)
            except re.error as error:  # it may be stricter than this parser
                raise PatternError(f"invalid regular expression: {error.msg}", error.pos or 0) from None

    def matches(self, text: str) -> bool:
        """Return whether the pattern occurs in the first 10,000 characters of a text.

        Raises:
            PatternError: if the pattern has taken too many steps, over all texts.
        """
        text = text[:_MAX_TEXT_CHARS]
        # Each choice multiplies the number of ways to match by at most the length of the text.
        if self._re is not None and max(len(text), 2) ** min(self._num_choices + 1, 60) <= _MAX_CHEAP_STEPS:
            return self._re.search(text) is not None
        found, num_steps = self._program.search(text, MAX_STEPS - self._num_steps)
        self._num_steps += num_steps
        if found is None:
            raise PatternError("the regular expression takes too long; use a simpler one")
        return found


# Parsing -------------------------------------------------------------------------------------------------------------

_CLASSES: dict[str, Test] = {
    "d": str.isdecimal,
    "w": lambda character: character.isalnum() or character == "_",
    "s": str.isspace,
}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v"}


class _PatternParser:
    """Parses a pattern into a tree, and counts the places at which a matcher has a choice."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.position = 0
        self.num_choices = 0
        self.is_nested = False
        """Whether a repetition contains a choice, for which `re` may take exponential time."""
        self.ignores_case = False
        if pattern.startswith("(?i)"):
            self.ignores_case, self.position = True, 4
        self.tree = self._alternatives(0)
        if self.position < len(pattern):
            raise self._error("unexpected )")

    def _error(self, message: str) -> PatternError:
        return PatternError(f"invalid regular expression: {message}", self.position)

    def _peek(self) -> str:
        return self.pattern[self.position : self.position + 1]

    def _alternatives(self, depth: int) -> _Node:
        if depth > _MAX_DEPTH:
            raise self._error("too many nested groups")
        choices = [self._sequence(depth)]
        while self._peek() == "|":
            self.position += 1
            self.num_choices += 1
            choices.append(self._sequence(depth))
        return choices[0] if len(choices) == 1 else _Node("any", tuple(choices))

    def _sequence(self, depth: int) -> _Node:
        parts = []
        while self._peek() not in {"", "|", ")"}:
            parts.append(self._repeated(depth))
        return _Node("all", tuple(parts))

    def _repeated(self, depth: int) -> _Node:
        num_before = self.num_choices
        part = self._atom(depth)
        bounds = self._bounds()
        if bounds is None:
            return part
        if part.kind in {"begin", "end", "boundary", "inside"}:
            raise self._error("nothing to repeat")
        low, high = bounds
        # A repetition of something that has a choice itself can be divided in exponentially many ways.
        self.is_nested = self.is_nested or self.num_choices > num_before
        if low != high:
            self.num_choices += 1
        if self._peek() == "?":  # lazy: the same texts match
            self.position += 1
        if self._peek() in {"*", "+", "?"}:
            raise self._error("multiple repeat")
        return _Node("repeat", (part,), None, low, high)

    def _bounds(self) -> tuple[int, int | None] | None:
        found = re.compile(r"[*+?]|\{(\d{0,4})(,?)(\d{0,4})\}").match(self.pattern, self.position)
        if found is None or found[0] in {"{}", "{,}"}:
            return None
        if found[0] in {"*", "+", "?"}:
            self.position = found.end()
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[found[0]]
        low = int(found[1] or 0)
        high = low if not found[2] else int(found[3]) if found[3] else None
        if high is not None and high < low:
            raise self._error("the lower bound is above the upper one")
        self.position = found.end()
        return low, high

    def _atom(self, depth: int) -> _Node:
        character = self._peek()
        if character == "(":
            return self._group(depth)
        if character == "[":
            return _Node("one", test=self._with_case(self._set()))
        if character in {"*", "+", "?"}:
            raise self._error("nothing to repeat")
        self.position += 1
        if character == "\\":
            return self._escape()
        if character == ".":
            return _Node("one", test=lambda found: found != "\n")
        if character in {"^", "$"}:
            return _Node("begin" if character == "^" else "end")
        return _Node("one", test=self._with_case(_equals(character)))

    def _group(self, depth: int) -> _Node:
        start = self.position
        self.position += 1
        if self._peek() == "?":
            if not self.pattern.startswith("?:", self.position):
                raise self._error("only (…) and (?:…) are supported")
            self.position += 2
        tree = self._alternatives(depth + 1)
        if self._peek() != ")":
            self.position = start
            raise self._error("missing )")
        self.position += 1
        return tree if tree.kind != "all" else _Node("all", (tree,))

    def _escape(self) -> _Node:
        character = self._peek()
        if not character:
            raise self._error("\\ at the end")
        self.position += 1
        if character in {"b", "B"}:
            return _Node("boundary" if character == "b" else "inside")
        return _Node("one", test=self._with_case(self._escaped_test(character)))

    def _escaped_test(self, character: str) -> Test:
        if character.lower() in _CLASSES:
            test = _CLASSES[character.lower()]
            return test if character.islower() else _negate(test)
        if character in _ESCAPES:
            return _equals(_ESCAPES[character])
        if character.isalnum():
            self.position -= 1
            raise self._error(f"\\{character} is not supported")
        return _equals(character)

    def _set(self) -> Test:
        start = self.position
        self.position += 1
        is_negated = self._peek() == "^"
        self.position += is_negated
        tests: list[Test] = []
        while self._peek() != "]" or not tests:
            if not self._peek():
                self.position = start
                raise self._error("missing ]")
            low = self._set_character(tests)
            if low is None:
                continue
            if self._peek() == "-" and self.pattern[self.position + 1 : self.position + 2] not in {"", "]"}:
                self.position += 1
                high = self._set_character(tests)
                if high is None or high < low:
                    raise self._error("invalid range")
                tests.append(_between(low, high))
            else:
                tests.append(_equals(low))
        self.position += 1
        test = _any_of(tests)
        return _negate(test) if is_negated else test

    def _set_character(self, tests: list[Test]) -> str | None:
        """Return the next character of a set, or add the test of a class to `tests` and return None."""
        character = self._peek()
        # Python reserves these for set operations.
        if character == "[" or self.pattern[self.position : self.position + 2] in {"--", "&&", "~~", "||"}:
            raise self._error(f"write \\{character} for the character itself")
        self.position += 1
        if character != "\\":
            return character
        escaped = self._peek()
        if not escaped:
            raise self._error("missing ]")
        self.position += 1
        if escaped.lower() in _CLASSES:
            tests.append(self._escaped_test(escaped))
            return None
        if escaped.isalnum() and escaped not in _ESCAPES:
            self.position -= 1
            raise self._error(f"\\{escaped} is not supported")
        return _ESCAPES.get(escaped, escaped)

    def _with_case(self, test: Test) -> Test:
        if not self.ignores_case:
            return test
        return lambda character: test(character) or test(character.lower()) or test(character.upper())


def _equals(wanted: str) -> Test:
    return lambda character: character == wanted


def _between(low: str, high: str) -> Test:
    return lambda character: low <= character <= high


def _negate(test: Test) -> Test:
    return lambda character: not test(character)


def _any_of(tests: Sequence[Test]) -> Test:
    return tests[0] if len(tests) == 1 else lambda character: any(test(character) for test in tests)


# Matching ------------------------------------------------------------------------------------------------------------


class _Program:
    """A pattern as instructions, all choices of which are followed at once."""

    def __init__(self, tree: _Node) -> None:
        self._kinds: list[str] = []
        self._targets: list[tuple[int, ...]] = []
        self._tests: list[Test | None] = []
        self._compile(tree)
        self._emit("match")

    def _emit(self, kind: str, targets: tuple[int, ...] = (), test: Test | None = None) -> int:
        if len(self._kinds) >= _MAX_STATES:
            raise PatternError("the regular expression is too large; use smaller bounds of repetitions")
        self._kinds.append(kind)
        self._targets.append(targets)
        self._tests.append(test)
        return len(self._kinds) - 1

    def _compile(self, node: _Node) -> None:
        if node.kind == "all":
            for part in node.parts:
                self._compile(part)
        elif node.kind == "any":
            jumps = []
            for part in node.parts[:-1]:
                split = self._emit("jump")
                self._compile(part)
                jumps.append(self._emit("jump"))
                self._targets[split] = (split + 1, len(self._kinds))
            self._compile(node.parts[-1])
            for jump in jumps:
                self._targets[jump] = (len(self._kinds),)
        elif node.kind == "repeat":
            self._compile_repeat(node)
        else:
            self._emit(node.kind, test=node.test)

    def _compile_repeat(self, node: _Node) -> None:
        for _ in range(node.low):
            self._compile(node.parts[0])
        if node.high is None:
            split = self._emit("jump")
            self._compile(node.parts[0])
            self._emit("jump", (split,))
            self._targets[split] = (split + 1, len(self._kinds))
            return
        splits = []
        for _ in range(node.high - node.low):
            splits.append(self._emit("jump"))
            self._compile(node.parts[0])
        for split in splits:
            self._targets[split] = (split + 1, len(self._kinds))

    def search(self, text: str, max_steps: int) -> tuple[bool | None, int]:
        """Return whether the pattern occurs in a text, or None after `max_steps`; and the number of steps."""
        num_steps = 0
        states: set[int] = set()
        for position in range(len(text) + 1):
            # Follow what needs no character. A match may begin at each position.
            waiting, reached = [0, *states], set[int]()
            while waiting:
                state = waiting.pop()
                if state in reached:
                    continue
                reached.add(state)
                num_steps += 1
                kind = self._kinds[state]
                if kind == "match":
                    return True, num_steps
                if kind == "jump":
                    waiting += self._targets[state]
                elif kind != "one" and _holds(kind, text, position):
                    waiting.append(state + 1)
            if num_steps > max_steps:
                return None, num_steps
            if position == len(text):
                break
            character = text[position]
            tests = ((state, self._tests[state]) for state in reached)
            states = {state + 1 for state, test in tests if test is not None and test(character)}
        return False, num_steps


def _holds(kind: str, text: str, position: int) -> bool:
    """Return whether an assertion holds at a position."""
    if kind == "begin":
        return position == 0
    if kind == "end":
        return position == len(text) or (position == len(text) - 1 and text[position] == "\n")
    is_word = _CLASSES["w"]
    before = position > 0 and is_word(text[position - 1])
    after = position < len(text) and is_word(text[position])
    return (before != after) == (kind == "boundary")
