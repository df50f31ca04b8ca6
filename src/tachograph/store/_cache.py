"""Where the segments of a run lie: in its folder, or where that may only be read, in one of the reader's own."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import weakref
from pathlib import Path

from tachograph.journal import RunFolder

__all__ = ["CacheFolder"]


class CacheFolder:
    """A folder for segments. One of its own goes with it."""

    def __init__(self, folder: RunFolder) -> None:
        self.path = folder.cache
        self._is_own = False
        if folder.cache.is_symlink() or folder.private.is_symlink():  # it may lead anywhere
            self._make_own()

    def ready(self) -> Path:
        """Return the folder, once it can be written to.

        Raises:
            OSError: if no such folder can be had.
        """
        if not self._is_own:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryFile(dir=self.path):
                    return self.path
            except OSError:  # the run's folder may only be read
                self._make_own()
        return self.path

    def clear(self) -> None:
        """Remove every segment."""
        for path in self.path.glob("v*.seg"):
            with contextlib.suppress(OSError):
                path.unlink()

    def _make_own(self) -> None:
        self.path, self._is_own = Path(tempfile.mkdtemp(prefix="tacho-cache-")), True
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)
