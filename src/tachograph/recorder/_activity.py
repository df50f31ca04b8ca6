"""The activity of the training thread, for the heartbeat of a rank.

When a job hangs, the last completed iteration is the same on all ranks; only what each rank is doing tells them apart.
The writer thread looks at the stack of the training thread before each heartbeat, so the training thread does nothing
for it, and loops that nothing observes are covered, too.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import NamedTuple

from tachograph._base.program_code import is_program_file

__all__ = ["Activity", "ActivityObserver"]

_MAX_FRAMES = 200

_COLLECTIVES_FILE = "torch/distributed/distributed_c10d.py"

_FILES = (
    ("torch/utils/data/", "data"),
    ("lightning/pytorch/loops/fetchers.py", "data"),
    ("torch/autograd/graph.py", "backward"),
    ("torch/autograd/__init__.py", "backward"),
    ("torch/optim/", "optimizer"),
    ("torch/serialization.py", "checkpoint"),
    ("torch/distributed/checkpoint/", "checkpoint"),
    ("safetensors/", "checkpoint"),
    ("torch/nn/modules/module.py", "forward"),
)
"""Parts of file names, and the phase that a function of such a file belongs to."""


_OBSERVER_FILE = "tachograph/integrations/_common/loop_observer.py"
_FETCH_FUNCTIONS = frozenset({"fetch", "_fetch_while_skipping"})


class Activity(NamedTuple):
    """The activity of the training thread at one moment."""

    iteration: int | None = None
    """Completed iterations."""
    phase: str = ""
    """`data`, `forward`, `backward`, `optimizer`, `checkpoint`, `validation`, `testing`; empty if it is unknown."""
    phase_since: float = 0.0
    """The wall time since when it has been seen in this phase of this iteration."""
    collective: str = ""
    """The function of `torch.distributed` that it is in, with its number if calls are counted; empty if in none."""
    location: str = ""
    """The innermost line of the program itself, such as `train.py:31`."""
    last_collective: str = ""
    """The last call of `torch.distributed` that returned, with its number, if calls are counted."""


class ActivityObserver:
    """Looks at the stack of the training thread. Used by the writer thread.

    Args:
        thread_id: the thread that started the run; if it has ended, the main thread is looked at.
        describe_collective: returns the call of a collective, such as `all_reduce #13`, given its function.
    """

    def __init__(self, thread_id: int, describe_collective: Callable[[str], str] = lambda name: name) -> None:
        self._thread_id = thread_id
        self._describe_collective = describe_collective
        self._last = Activity()

    def observe(self, iteration: int | None, span_phase: str, now_s: float) -> Activity:
        """Return the activity of the training thread.

        Args:
            iteration: the iterations that it has completed.
            span_phase: the phase of an open span, such as `validation`, if there is one.
            now_s: the wall time.
        """
        frames = sys._current_frames()
        frame = frames.get(self._thread_id) or frames.get(threading.main_thread().ident or 0)
        phase, collective = _classify(frame)
        if collective:
            collective = self._describe_collective(collective)
        activity = Activity(iteration, span_phase or phase, now_s, collective, _location(frame))
        last = self._last
        if activity == last._replace(phase_since=now_s) and last.phase_since <= now_s:
            activity = last
        self._last = activity
        return activity


def _classify(frame: FrameType | None) -> tuple[str, str]:
    """Return the phase that the innermost known function belongs to, and the collective around it, if there is one."""
    collective = ""
    for _ in range(_MAX_FRAMES):
        if frame is None:
            break
        path = frame.f_code.co_filename.replace("\\", "/")
        if path.endswith(_COLLECTIVES_FILE):
            if not frame.f_code.co_name.startswith("_"):
                collective = frame.f_code.co_name  # the outermost: one collective may call another one
        elif path.endswith(_OBSERVER_FILE):
            if frame.f_code.co_name in _FETCH_FUNCTIONS:  # of a loader that is not torch's
                return "data", collective
        else:
            for part, phase in _FILES:
                if part in path:
                    return phase, collective
        frame = frame.f_back
    return "", collective


def _location(frame: FrameType | None) -> str:
    """Return the file and line of the innermost frame that belongs to no installed package."""
    for _ in range(_MAX_FRAMES):
        if frame is None:
            break
        path = frame.f_code.co_filename
        if is_program_file(path) and not path.startswith("<"):
            return f"{os.path.basename(path):.80}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
