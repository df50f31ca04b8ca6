"""A small value that the processes of a server change in turn, such as the bytes that a key has sent.

The value is the content of a file, as JSON. A process that ends in the middle of a change may leave a damaged file,
which counts as an empty value: such values are only used for limits, which then begin again.

Servers on several hosts need not have the same time, so the time of a change is the one of the file system.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from tachograph._base.files import exclusive_lock, make_folder, open_to_update
from tachograph._base.typed import decode_json

__all__ = ["SharedFile"]

_MAX_BYTES = 1 << 20
Value = TypeVar("Value", bound=msgspec.Struct)


class SharedFile(Generic[Value]):
    """A value in a file. Any thread and any process may change it.

    Args:
        path: the file.
        kind: the class of the value; all its fields have defaults.
        below: the data folder.
        clock: returns the time; by default it is the one of the file system.
    """

    def __init__(self, path: Path, kind: type[Value], *, below: Path, clock: Callable[[], float] | None = None) -> None:
        self._path = path
        self._kind = kind
        self._below = below
        self._clock = clock

    @contextlib.contextmanager
    def update(self) -> Iterator[tuple[Value, float]]:
        """Yield the value and the time; changes of the value are stored at the end of the block.

        Raises:
            OSError: if the file cannot be opened. If it cannot be written, the change is lost.
        """
        make_folder(self._path.parent, below=self._below, mode=0o700)
        with exclusive_lock(self._path, below=self._below, mode=0o600):
            descriptor = open_to_update(self._path, below=self._below, mode=0o600)
            try:
                data = os.pread(descriptor, _MAX_BYTES, 0)
                value = self._decode(data)
                yield value, self._now_s(descriptor)
                new_data = msgspec.json.encode(value)
                if new_data != data:
                    with contextlib.suppress(OSError):
                        os.pwrite(descriptor, new_data, 0)
                        os.ftruncate(descriptor, len(new_data))
            finally:
                os.close(descriptor)

    def _decode(self, data: bytes) -> Value:
        try:
            return decode_json(data, self._kind)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return self._kind()

    def _now_s(self, descriptor: int) -> float:
        if self._clock is not None:
            return self._clock()
        os.utime(descriptor)
        return os.fstat(descriptor).st_mtime
