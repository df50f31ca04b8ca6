"""Secrets that cannot be printed by mistake, and texts from which they are taken out."""

from __future__ import annotations

import base64
from urllib.parse import quote, unquote, urlsplit

from tachograph.records import MASK, mask_text

__all__ = ["Cleaner", "Secret"]

_FEWEST_CHARS = 4
"""A shorter text would be found in innocent words."""


class Secret:
    """A text that shows itself only to `reveal`."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the text, for whoever sends it where it belongs."""
        return self._text

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return MASK


class Cleaner:
    """Takes known secrets out of a text, whole or in the parts that an error message may quote."""

    def __init__(self, *secrets: Secret | None) -> None:
        parts: set[str] = set()
        for secret in secrets:
            if secret is not None:
                parts |= _parts(secret.reveal())
        self._parts = sorted((part for part in parts if len(part) >= _FEWEST_CHARS), key=len, reverse=True)

    def __call__(self, text: str, most_chars: int = 300) -> str:
        """Return the text in one line, without secrets, and not longer than this."""
        for part in self._parts:
            text = text.replace(part, MASK)
        return " ".join(mask_text(text).split())[:most_chars]


def _parts(text: str) -> set[str]:
    forms = {text, quote(text), quote(text, safe=""), unquote(text), repr(text)[1:-1]}
    forms |= {base64.b64encode(form.encode()).decode() for form in (text, f"\0{text}")}
    if "://" not in text:
        return forms | {word for word in text.split() if len(word) >= 8}  # the token of "Bearer …"
    address = urlsplit(text)
    path = f"{address.path}?{address.query}" if address.query else address.path
    values = [piece.partition("=")[2] for piece in address.query.split("&")]
    # A short piece of a path, such as "hook" or "services", is no secret and may be a word of the answer.
    pieces = [piece for piece in [*address.path.split("/"), *values] if len(piece) >= 8]
    return forms | {path, unquote(path), *pieces, *map(unquote, pieces)} - {"/"}
