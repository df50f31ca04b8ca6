"""Keeps the media of a run within its limits of bytes and files.

At a limit every second entry of the largest name loses its files; its pictures stay visible as thumbnails. The first
and the newest entry of a name always stay, so a name can be thinned until these two are left. A file that another entry
also refers to stays, too. Only entries of this attempt are known here; the files of earlier ones count against the
limits but are not touched.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tachograph.media._pictures import thumbnail
from tachograph.media._store import MediaStore, StoredFile

__all__ = ["Quota", "parse_keep"]


class _QuotaEntry(NamedTuple):
    """The files of one `media` record."""

    files: tuple[StoredFile, ...]

    @property
    def num_bytes(self) -> int:
        return sum(file.num_bytes for file in self.files)


def parse_keep(text: str) -> tuple[str, int]:
    """Return how media is kept: `thin`, `all`, `off` or `latest`, and the number of `latest:N`.

    Raises:
        ValueError: if it is none of these.
    """
    word, _, number = text.strip().lower().partition(":")
    if word in {"thin", "all", "off"} and not number:
        return word, 0
    if word == "latest" and number.isdigit() and int(number) > 0:
        return word, int(number)
    raise ValueError(f"expected thin, all, off or latest:N, got {text!r:.80}")


class Quota:
    """Decides whether media is stored, and thins older media. Used only by the media thread."""

    def __init__(self, store: MediaStore, *, keep: str, max_bytes: int, max_files: int) -> None:
        self._store = store
        self._word, self._num_latest = parse_keep(keep)
        self._max_bytes = max_bytes
        self._max_files = max_files
        self._entries: dict[str, list[_QuotaEntry]] = {}
        self._num_uses: dict[str, int] = {}
        self.num_thinned = 0
        """Records whose files were removed to make room."""

    def make_room(self, num_bytes: int = 0) -> bool:
        """Return whether there is room for another entry; thin older ones if that is necessary."""
        if num_bytes > self._max_bytes:
            return False
        while not self.has_room(num_bytes):
            if self._word != "thin" or not self._thin_largest():
                return False
        return True

    def add(self, name: str, files: Iterable[StoredFile]) -> None:
        """Note the files of a new entry; with `latest:N`, remove the files of the oldest."""
        entry = _QuotaEntry(tuple({file.sha256: file for file in files}.values()))
        for file in entry.files:
            self._num_uses[file.sha256] = self._num_uses.get(file.sha256, 0) + 1
        entries = self._entries.setdefault(name, [])
        entries.append(entry)
        while self._word == "latest" and len(entries) > self._num_latest:
            self._remove(entries.pop(0), keeps_thumbnails=False)

    def has_room(self, num_bytes: int) -> bool:
        """Return whether there is room for so many bytes without thinning anything."""
        store = self._store
        return store.num_bytes + num_bytes <= self._max_bytes and store.num_files < self._max_files

    def _thin_largest(self) -> bool:
        """Remove the files of every second entry of the largest name; return whether anything was freed."""
        names = sorted(self._entries, key=lambda name: sum(entry.num_bytes for entry in self._entries[name]))
        for name in reversed(names):
            entries = self._entries[name]
            if len(entries) < 3:
                continue
            num_files = self._store.num_files
            for entry in entries[1:-1:2]:
                self._remove(entry, keeps_thumbnails=True)
            last = len(entries) - 1
            self._entries[name] = [entry for index, entry in enumerate(entries) if index % 2 == 0 or index == last]
            if self._store.num_files < num_files:
                return True
        return False

    def _remove(self, entry: _QuotaEntry, *, keeps_thumbnails: bool) -> None:
        self.num_thinned += 1
        for file in entry.files:
            self._num_uses[file.sha256] -= 1
            if self._num_uses[file.sha256]:
                continue
            del self._num_uses[file.sha256]
            if keeps_thumbnails:
                data = self._store.read(file.sha256, file.ext)
                small = thumbnail(data) if data is not None and file.ext in {"png", "jpg", "webp", "gif"} else None
                if small is not None:
                    self._store.add_thumbnail(file.sha256, small)
            self._store.remove(file.sha256, file.ext)
