"""Secrets that are not printed by accident, and a masker that removes them from texts that others wrote."""

from __future__ import annotations

import base64
from urllib.parse import quote, unquote, urlsplit

from tachograph.records import MASK, mask_text

__all__ = ["SecretMasker", "Secret"]

_MIN_CHARS = 4
"""A shorter string could be part of an ordinary word."""


class Secret:
    """A string that only `reveal` returns; its repr is masked."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the text. Call it as late as possible, so that no traceback holds the result."""
        return self._text

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return MASK


class SecretMasker:
    """Masks known secrets in a text, whole or in the parts and encodings that an error message may quote."""

    def __init__(self, *secrets: Secret | None) -> None:
        parts: set[str] = set()
        for secret in secrets:
            if secret is not None:
                parts |= _parts(secret.reveal())
        self._parts = sorted((part for part in parts if len(part) >= _MIN_CHARS), key=len, reverse=True)

    def __call__(self, text: str, max_chars: int = 300) -> str:
        """Return the text as one line of limited length, without secrets."""
        for part in self._parts:
            text = text.replace(part, MASK)
        return " ".join(mask_text(text).split())[:max_chars]


def _parts(text: str) -> set[str]:
    forms = {text, quote(text), quote(text, safe=""), unquote(text), repr(text)[1:-1]}
    forms |= {base64.b64encode(form.encode()).decode() for form in (text, f"\0{text}")}
    if "://" not in text:
        return forms | {word for word in text.split() if len(word) >= 8}  # the token of "Bearer …"
    address = urlsplit(text)
    path = f"{address.path}?{address.query}" if address.query else address.path
    values = [piece.partition("=")[2] for piece in address.query.split("&")]
    # A short part of a path, such as "hook" or "services", is not secret and may be a word of the response.
    pieces = [piece for piece in [*address.path.split("/"), *values] if len(piece) >= 8]
    return forms | {path, unquote(path), *pieces, *map(unquote, pieces)} - {"/"}
