"""Reads the rows of a large JSON file one by one, so that only one of them is in memory.

`JsonText` holds a part of the text and reads on when a value is not complete. A value is parsed from its beginning
again after each read, so each read doubles the text that is held; a value that exceeds `_MAX_VALUE_CHARS` is an error.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO, Any

from tachograph.exceptions import ConfigError

__all__ = ["read_json_fields", "read_json_rows"]

_MAX_VALUE_CHARS = 8 << 20
_MAX_FIELDS = 100
_READ_CHARS = 256 << 10
_SPACE = " \t\r\n"


def read_json_rows(file: IO[str], path: Path, name: str) -> Iterator[Any]:
    """Yield the items of a list: the whole text, or the field `name` of an object.

    Raises:
        ConfigError: if the text is neither, is not valid JSON, or has a value that is too large.
    """
    text = _JsonText(file, path)
    has_list = False
    match text.next_character():
        case "[":
            has_list = True
            yield from text.items()
        case "{":
            for key in text.names():
                if key == name and text.next_character() == "[":
                    has_list = True
                    yield from text.items()
                else:
                    text.value()
        case _:
            text.value()
    text.expect_end()
    if not has_list:
        raise ConfigError(f"{str(path)!r} has no `{name}`, as a trainer_state.json has, and is not a list")


def read_json_fields(file: IO[str], path: Path, *, skip: Collection[str]) -> dict[str, Any]:
    """Return the fields of an object except some, and no more than `_MAX_FIELDS`; if it is damaged, those before."""
    text = _JsonText(file, path)
    fields: dict[str, Any] = {}
    with contextlib.suppress(ConfigError):
        if text.next_character() == "{":
            for key in text.names():
                if key not in skip and len(fields) < _MAX_FIELDS:
                    fields[key] = text.value()
                elif text.next_character() == "[":
                    for _ in text.items():
                        pass
                else:
                    text.value()
    return fields


class _JsonText:
    """A text that is read while it is parsed."""

    def __init__(self, file: IO[str], path: Path) -> None:
        self._file = file
        self._path = path
        self._text = ""
        self._offset = 0
        self._num_dropped = 0
        # Accepts NaN and Infinity, which many tools write; msgspec does not.
        self._decode = json.JSONDecoder().raw_decode

    def next_character(self) -> str:
        """Return the next character that is not space, without consuming it; an empty string at the end."""
        while True:
            while self._offset < len(self._text) and self._text[self._offset] in _SPACE:
                self._offset += 1
            if self._offset < len(self._text):
                return self._text[self._offset]
            if not self._read_more():
                return ""

    def items(self) -> Iterator[Any]:
        """Yield the items of the list that starts here."""
        self._expect("[")
        if self.next_character() == "]":
            self._offset += 1
            return
        while True:
            yield self.value()
            if not self._has_next("]"):
                return

    def names(self) -> Iterator[str]:
        """Yield the names of the object that starts here; the caller consumes the value of each."""
        self._expect("{")
        if self.next_character() == "}":
            self._offset += 1
            return
        while True:
            key = self.value()
            if not isinstance(key, str):
                raise self._error("expected a name in double quotes")
            self._expect(":")
            yield key
            if not self._has_next("}"):
                return

    def value(self) -> Any:
        """Return the value that starts here."""
        self.next_character()
        while True:
            try:
                value, end = self._decode(self._text, self._offset)
            except RecursionError as error:
                raise self._error("nested too deeply") from error
            except json.JSONDecodeError as error:
                if not self._read_more():
                    raise self._error(error.msg) from error
                continue
            # A number near the end of the text may continue: `1` with `.5`, or `1e+` with `5`.
            if end + 2 < len(self._text) or not self._read_more():
                self._offset = end
                return value

    def expect_end(self) -> None:
        """Raise if anything follows, such as the rest of a number that was cut off."""
        if self.next_character():
            raise self._error("text after the end of the value")

    def _has_next(self, closing: str) -> bool:
        character = self.next_character()
        if character not in {",", closing}:
            raise self._error(f"expected ',' or {closing!r}")
        self._offset += 1
        return character == ","

    def _expect(self, character: str) -> None:
        if self.next_character() != character:
            raise self._error(f"expected {character!r}")
        self._offset += 1

    def _read_more(self) -> bool:
        """Read more and drop the text that was parsed; at the end of the file, change nothing and return False."""
        num_left = len(self._text) - self._offset
        if num_left > _MAX_VALUE_CHARS:
            raise ConfigError(f"{str(self._path)!r} has a value of more than {_MAX_VALUE_CHARS >> 20} MiB")
        more = self._file.read(max(_READ_CHARS, num_left))
        if more:
            self._num_dropped += self._offset
            self._text, self._offset = self._text[self._offset :] + more, 0
        return bool(more)

    def _error(self, problem: str) -> ConfigError:
        where = f"at character {self._num_dropped + self._offset}"
        return ConfigError(f"{str(self._path)!r} is not valid JSON: {problem} {where}")
