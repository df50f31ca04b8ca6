"""Regular expressions that cannot hang.

Python's `re` backtracks: a pattern such as ``(a+)+b`` takes longer than the age of the universe on a line of a's. RE2
follows all choices at once, in time proportional to the length of the text, and has bounded memory. A large pattern can
still be slow on many long texts, so the processor time of all texts of a query is bounded, too.
"""

from __future__ import annotations

import functools
import re
import time
from typing import Any

__all__ = ["PatternError", "SafePattern"]

_MAX_PATTERN_CHARS = 500
_MAX_TEXT_CHARS = 10_000
_MAX_SEARCH_S = 2.0

# Python repeats up to this often; RE2 reads it as plain text.
_NO_LOWER_BOUND = re.compile(r"(?<!\\)\{,\d+\}")


class PatternError(Exception):
    """A regular expression is invalid, not supported or too expensive; `offset` is the place in the pattern."""

    def __init__(self, message: str, offset: int = 0) -> None:
        super().__init__(message)
        self.offset = offset


class SafePattern:
    """A compiled regular expression in the syntax of RE2, searched anywhere in a text.

    Raises:
        PatternError: if the pattern is invalid or has an unsupported element.
    """

    def __init__(self, pattern: str) -> None:
        import re2

        if len(pattern) > _MAX_PATTERN_CHARS:
            raise PatternError(f"a regular expression has at most {_MAX_PATTERN_CHARS} characters")
        if match := _NO_LOWER_BOUND.search(pattern):
            raise PatternError(f"invalid regular expression: write {{0{match[0][1:]} for {match[0]}", match.start())
        try:
            self._regex = re2.compile(_encode(pattern), _options())
        except re2.error as error:
            raise _pattern_error(error, pattern) from None
        self._search_s = 0.0

    def matches(self, text: str) -> bool:
        """Return whether the pattern occurs in the first 10,000 characters of a text.

        Raises:
            PatternError: if the pattern has taken too much processor time, over all texts.
        """
        if self._search_s > _MAX_SEARCH_S:
            raise PatternError("the regular expression takes too long; use a simpler one")
        started_s = time.thread_time()
        is_match = self._regex.search(_encode(text[:_MAX_TEXT_CHARS])) is not None
        self._search_s += time.thread_time() - started_s
        return is_match


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")  # names of files may contain bytes that are not UTF-8


@functools.cache
def _options() -> Any:
    import re2

    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    return options


def _pattern_error(error: Exception, pattern: str) -> PatternError:
    """Return the error of RE2, which is bytes such as ``bad repetition operator: **``, with its place."""
    text = error.args[0] if error.args else ""
    message = text.decode(errors="replace") if isinstance(text, bytes) else str(text)
    reason, _, fragment = message.partition(": ")
    if reason == "invalid perl operator":
        message = f"only (…), (?:…) and flags such as (?i) are supported, not {fragment}"
    elif reason.startswith(("missing", "unexpected")):
        message = reason  # the fragment is the rest of the pattern
    return PatternError(f"invalid regular expression: {message}", max(pattern.find(fragment), 0))
