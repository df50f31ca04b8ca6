"""Texts of others, as they may be printed in a terminal.

A journal, a folder, an exception or a server may contain any characters: escape sequences that clear the screen, write
to the clipboard or hide a link, and characters that reorder or hide others.
"""

from __future__ import annotations

from typing import Any

__all__ = ["safe", "safe_lines"]


def safe(value: Any, max_chars: int = 200) -> str:
    """Return the value as one line with everything that is not printable escaped, truncated to `max_chars`."""
    text = str(value)
    text = text if len(text) <= max_chars else text[: max_chars - 1] + "…"
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


def safe_lines(text: str) -> str:
    """Return a text with everything escaped that is neither printable nor a line break or a tab."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() or character in "\n\t" else repr(character)[1:-1] for character in text
    )
