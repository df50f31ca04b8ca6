"""The folder for the segments of a run: inside the run folder, or a temporary one if that is read-only."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import weakref
from pathlib import Path

from tachograph._base.files import create_file, make_folder, temporary_path
from tachograph.journal import RunFolder

__all__ = ["SegmentFolder"]


class SegmentFolder:
    """A folder for segments. A temporary folder is deleted together with this object."""

    def __init__(self, folder: RunFolder) -> None:
        self.path, self.below = folder.cache, folder.path
        self._is_temporary = False
        if folder.cache.is_symlink() or folder.private.is_symlink():  # a link may point anywhere
            self._use_temporary()

    def ensure_writable(self) -> Path:
        """Return a writable folder; switch to a temporary one if the run folder is read-only.

        Raises:
            OSError: if no writable folder is available.
        """
        if not self._is_temporary:
            try:
                make_folder(self.path, below=self.below)
                probe = temporary_path(self.path / "probe")
                os.close(create_file(probe, below=self.below))
                probe.unlink()
                return self.path
            except OSError:  # the run folder is read-only
                self._use_temporary()
        return self.path

    def clear(self) -> None:
        """Remove every segment."""
        for path in self.path.glob("v*.seg"):
            with contextlib.suppress(OSError):
                path.unlink()

    def _use_temporary(self) -> None:
        self.path = self.below = Path(tempfile.mkdtemp(prefix="tacho-cache-"))
        self._is_temporary = True
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)
