"""SHA-256 of contents that are read in pieces, and copied on the way if asked."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

from tachograph._base.files import write_all

__all__ = ["BLOCK_BYTES", "HashedContent", "hash_blocks", "read_blocks"]

BLOCK_BYTES = 1 << 20


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class HashedContent(NamedTuple):
    """A content that was read."""

    sha256: str
    num_bytes: int


def read_blocks(file: _Readable) -> Iterator[bytes]:
    """Yield the rest of an open file in pieces."""
    while block := file.read(BLOCK_BYTES):
        yield block


def hash_blocks(blocks: Iterable[bytes], copy_to: int | None = None) -> HashedContent:
    """Read a content; return its hash and size.

    Args:
        blocks: the content.
        copy_to: a descriptor to which it is written as well.

    Raises:
        OSError: if it cannot be written.
    """
    digest, num_bytes = hashlib.sha256(), 0
    for block in blocks:
        digest.update(block)
        num_bytes += len(block)
        if copy_to is not None:
            write_all(copy_to, block)
    return HashedContent(digest.hexdigest(), num_bytes)
