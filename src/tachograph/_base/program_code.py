"""Tell the code of the program from that of installed packages, by the names of files."""

from __future__ import annotations

import functools
import os
import sysconfig

__all__ = ["is_program_file"]


def is_program_file(path: str) -> bool:
    """Return whether a source file belongs neither to an installed package nor to this one."""
    return not path.startswith(_library_folders())


@functools.cache
def _library_folders() -> tuple[str, ...]:
    return tuple({*sysconfig.get_paths().values(), os.path.dirname(os.path.dirname(os.path.abspath(__file__)))})
