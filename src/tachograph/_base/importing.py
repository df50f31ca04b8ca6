"""Import many modules without searching them for garbage, and import on first use where a signal may interrupt it.

A signal handler runs on the main thread. If it interrupts the import of a module there, and imports the same module, it
gets the part that was executed so far: names are missing, and the call of the handler fails. It cannot wait either,
because the import continues only when it returns. So what a public call imports on its first use is imported by another
thread, which no handler interrupts, while the main thread waits; a handler that needs the module waits for that thread.
"""

from __future__ import annotations

import _thread
import contextlib
import gc
import sys
import threading
from collections.abc import Iterator
from importlib import import_module
from types import FrameType

from tachograph._base.guard import suppress
from tachograph._base.reentrant import ReentrantEvent

__all__ = ["import_on_first_use", "is_importing", "without_collection"]

_IMPORT_FILE = "<frozen importlib._bootstrap>"
_LOCKING_FUNCTIONS = {"_find_and_load", "_lock_unlock_module"}
"""The functions of Python that hold the lock of a module; the first one runs for as long as it is being imported."""


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Collect no garbage inside, and exclude the imported objects from later collections."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()  # modules live as long as the process
        if was_enabled:
            gc.enable()


def import_on_first_use(*names: str) -> None:
    """Import modules so that a signal handler may interrupt this and import them as well.

    Call it before the import statement of a function that the main thread of a training may call.

    Args:
        names: the full names. A module that cannot be imported is left to the statement, which raises.
    """
    missing_names = [name for name in names if not _is_imported(name)]
    if not missing_names or threading.current_thread() is not threading.main_thread() or is_importing(sys._getframe()):
        return  # another thread could wait in vain for what this one is importing
    has_ended = ReentrantEvent()

    def import_all() -> None:
        try:
            for name in missing_names:
                with suppress(Exception):
                    import_module(name)
        finally:
            has_ended.set()

    with suppress(RuntimeError):  # the interpreter is shutting down, or may start no threads
        _thread.start_new_thread(import_all, ())
        has_ended.wait()


def _is_imported(name: str) -> bool:
    module = sys.modules.get(name)
    return module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False)


def is_importing(frame: FrameType | None) -> bool:
    """Return whether a thread is importing a module, and so holds a lock of it, given the frame that it executes."""
    while frame is not None:
        if frame.f_code.co_filename == _IMPORT_FILE and frame.f_code.co_name in _LOCKING_FUNCTIONS:
            return True
        frame = frame.f_back
    return False
