"""Reads the log files of W&B and SwanLab, without the packages and without an account.

Such a file has a header of 7 bytes, which names its format, then blocks of 32 KiB. A record lies in one or several
chunks, each with a header of 7 bytes: a checksum of the rest (4), the size of the data (2) and whether the chunk is a
whole record or its first, middle or last part (1). No chunk crosses the end of a block. The rest of a block that is too
short for a header is filled with zeros.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from tachograph.importers._source import Damage, source_changed

__all__ = ["read_chunked_records"]

_BLOCK_BYTES = 32 << 10
_MAX_RECORD_BYTES = 64 << 20
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_chunk_header = struct.Struct("<IHB")


def read_chunked_records(
    path: Path, offset: int, damage: list[Damage], *, header: bytes
) -> Iterator[tuple[bytes, int]]:
    """Yield the data of each record from an offset on, with the offset after it, up to the end or the first damage.

    Args:
        path: the file.
        offset: where a record begins; 0 for the first one.
        damage: gets an entry if the file is damaged.
        header: the first bytes of a file of this format.

    Raises:
        OSError: if the file cannot be read.
        ConfigError: if the file is shorter than the offset.
    """

    def stop(byte: int, reason: str) -> None:
        damage.append(Damage(str(path), f"byte {byte}", reason))

    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size < offset:
            raise source_changed(path)
        if not offset and file.read(len(header)) != header:
            return stop(0, f"the file does not begin as a {path.suffix} file of a known version does")
        offset = max(offset, len(header))
        file.seek(offset)
        start, parts, num_bytes = offset, list[bytes](), 0
        while True:
            padding = _BLOCK_BYTES - offset % _BLOCK_BYTES
            if padding < _chunk_header.size:
                file.seek(padding, os.SEEK_CUR)
                offset += padding
            chunk = file.read(_chunk_header.size)
            if not chunk and not parts:
                return None
            if len(chunk) < _chunk_header.size:
                return stop(start, "the file ends inside a record")
            checksum, size, kind = _chunk_header.unpack(chunk)
            data = file.read(size)
            if len(data) < size:
                return stop(start, "the file ends inside a record")
            if zlib.crc32(data, zlib.crc32(chunk[6:])) != checksum:
                return stop(offset, "the checksum of a record is wrong")
            if (kind in {_WHOLE, _FIRST}) is bool(parts) or kind not in {_WHOLE, _FIRST, _MIDDLE, _LAST}:
                return stop(offset, "the parts of a record are out of order")
            offset += len(chunk) + size
            num_bytes += size
            if num_bytes > _MAX_RECORD_BYTES:
                return stop(start, f"a record has more than {_MAX_RECORD_BYTES >> 20} MiB")
            parts.append(data)
            if kind in {_WHOLE, _LAST}:
                yield b"".join(parts), offset
                start, parts, num_bytes = offset, [], 0
