"""`TelemetryThread`: a background thread whose imports a fork waits for.

A module has a lock while it is being imported. If the process forks while another thread imports, the child does not
have that thread, and the lock stays locked there: the child waits for ever as soon as it imports the same module. A
program does not know what our threads import and when, so a fork waits for their imports.

Python calls the hooks before a fork in reverse order of their registration. Hooks that were registered after ours have
already locked what they protect, and an import that needs one of these locks ends only after the fork. The lock of
`logging` is the one that many imports need, so `logging` is imported first.
"""

from __future__ import annotations

import logging  # noqa: F401 - see above
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from tachograph._base.importing import is_importing

__all__ = ["TelemetryThread"]

_MAX_WAIT_S = 60.0
"""On a busy machine imports take seconds."""

_MAX_WAIT_IN_IMPORT_S = 5.0
"""Bounds the wait of a fork inside of an import, because the other thread may wait for that import."""

_POLL_S = 0.001

_thread_ids: set[int] = set()


class TelemetryThread(threading.Thread):  # noqa: TID251 - the only one
    """A daemon thread of telemetry; see the module."""

    def __init__(self, target: Callable[..., object], *, name: str, args: Iterable[Any] = ()) -> None:
        super().__init__(target=target, name=name, args=args, daemon=True)

    def run(self) -> None:
        """Run the target."""
        thread_id = threading.get_ident()
        _thread_ids.add(thread_id)
        try:
            super().run()
        finally:
            _thread_ids.discard(thread_id)


def _wait_for_imports() -> None:
    """Wait until no thread of telemetry is importing."""
    if not _thread_ids:
        return
    max_wait_s = _MAX_WAIT_IN_IMPORT_S if is_importing(sys._getframe()) else _MAX_WAIT_S
    deadline_s = time.monotonic() + max_wait_s
    while _is_any_importing() and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)


def _is_any_importing() -> bool:
    other_ids = _thread_ids - {threading.get_ident()}
    return any(is_importing(frame) for thread_id, frame in sys._current_frames().items() if thread_id in other_ids)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_wait_for_imports, after_in_child=_thread_ids.clear)
