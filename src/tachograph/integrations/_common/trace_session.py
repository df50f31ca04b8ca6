"""One session of torch's profiler, in a process whose user may run profilers, too.

Only one profiler can run at a time, and torch does not check: a second one ends the first, and the process crashes when
the owner of the first asks for its results. So ours does not start while another one runs, and it ends when another
one starts. To notice that, the functions that every profiler calls first are replaced while ours runs.
"""

from __future__ import annotations

import functools
import gc
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from tachograph._base.guard import guard
from tachograph._base.patching import Patches

__all__ = ["TraceSession", "find_obstacle"]

_MAX_DURATION_S = 120.0
_MAX_GROWTH_BYTES = 512 << 20
"""Maximum growth of the process while it is traced: about a million events, as many as a viewer can open."""
_YIELD_TIMEOUT_S = 5.0
_ENTRY_POINTS = ("_prepare_profiler", "_run_on_profiler_start")
"""The functions in `torch.autograd.profiler` that every profiler of torch calls when it starts."""

PREEMPTION = "another profiler was started meanwhile; only one can run at a time"


def find_obstacle(torch: Any) -> str | None:
    """Return why no trace can be started now, or None if one can."""
    if torch is None:
        return "torch is not in use in this process"
    legacy = torch.autograd.profiler
    if torch.autograd._profiler_enabled() or getattr(legacy, "_is_profiler_enabled", False):
        return "another profiler is running; only one can run at a time"
    # A profiler in warm-up is not enabled yet but would be disturbed. One that only waits will preempt ours instead.
    profile_class, warm_up = torch.profiler.profile, torch.profiler.ProfilerAction.WARMUP
    # `type(…)`, not `isinstance`: lazy module proxies import things when their `__class__` is read.
    if any(issubclass(type(each), profile_class) and each.current_action == warm_up for each in gc.get_objects()):
        return "another profiler is warming up; only one can run at a time"
    return None


class TraceSession:
    """One profiler, started and stopped in the training thread."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._thread = threading.get_ident()
        self._has_ended = threading.Event()
        self._must_end = False
        self._is_running = False
        self._patches = Patches()
        self._process = psutil.Process()
        self._mark: Any = None
        self.fault = ""
        """Why there is no trace, if there is none."""

    def start(self, first: int) -> None:
        """Start before a step. Exceptions of torch propagate."""
        kinds = self._torch.profiler.ProfilerActivity
        has_cuda = self._torch.cuda.is_available() and self._torch.cuda.is_initialized()
        self._start_s = time.monotonic()
        self._start_bytes = self._process.memory_info().rss
        with warnings.catch_warnings():
            # Some versions warn about reusing a profiler object, which we do not do.
            warnings.simplefilter("ignore", UserWarning)
            self._profiler = self._torch.profiler.profile(
                activities=[kinds.CPU, kinds.CUDA] if has_cuda else [kinds.CPU]
            )
            self._profiler.start()
        self._is_running = True
        self._watch_entry_points()
        self._mark_step(first)

    def _mark_step(self, number: int | None) -> None:
        """Mark in the trace where a step ends and the next one starts, with the name that viewers recognise."""
        if self._mark is not None:
            self._mark.__exit__(None, None, None)
        self._mark = None
        if number is not None:
            self._mark = self._torch.profiler.record_function(f"ProfilerStep#{number}")
            self._mark.__enter__()

    def step(self, following: int) -> str | None:
        """Handle the end of a step; return why the trace must end now, or None.

        Args:
            following: the number of the next step.
        """
        if self._must_end or self.fault:
            return PREEMPTION
        self._mark_step(following)
        if time.monotonic() - self._start_s > _MAX_DURATION_S:
            return f"ended after {_MAX_DURATION_S:g} s"
        if self._process.memory_info().rss - self._start_bytes > _MAX_GROWTH_BYTES:
            return f"ended because the process grew by more than {_MAX_GROWTH_BYTES >> 20} MiB"
        return None

    def stop(self) -> None:
        """Stop, in the training thread. Afterwards there is a trace to export, unless `fault` is set."""
        self._patches.undo()
        if not self._is_running:
            return
        self._is_running = False
        if self._must_end:
            self.fault = self.fault or PREEMPTION
        if not self._torch.autograd._profiler_enabled():
            self.fault = "the profiler was ended by other code in the process"
            self._torch.autograd.profiler._run_on_profiler_stop()  # otherwise torch still considers it running
        elif threading.get_ident() != self._thread:
            self.fault = "the run ended in another thread than the traced one"
        else:
            try:
                self._mark_step(None)
                self._profiler.stop()
            except Exception as error:  # noqa: BLE001 - becomes the answer to the request
                self.fault = f"{type(error).__name__}: {error}"
        self._has_ended.set()

    def export(self, path: Path) -> None:
        """Write the trace, once. May be called in any thread, but torch holds the GIL while it writes."""
        self._profiler.export_chrome_trace(str(path))

    def forget(self) -> None:
        """Stop collecting in a forked child. Stopping the profiler could wait for threads that do not exist there."""
        self._patches.undo()
        if self._is_running:
            self._is_running = False
            self._torch._C._autograd._enable_record_function(False)
            self._torch.autograd.profiler._run_on_profiler_stop()

    # Yielding to other profilers ------------------------------------------------------------------------------------

    def _watch_entry_points(self) -> None:
        module = self._torch.autograd.profiler
        for name in _ENTRY_POINTS:
            original = getattr(module, name, None)
            if callable(original):
                # Not `wrap`: a library may have wrapped the wrapper of an earlier session, which is inactive by now.
                self._patches.replace(module, name, self._yield_before(original))

    def _yield_before(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def entry_point(*args: Any, **kwargs: Any) -> Any:
            with guard("yielding to another profiler"):
                self._yield()
            return original(*args, **kwargs)

        return entry_point

    def _yield(self) -> None:
        """End our profiler because another one is starting."""
        if not self._is_running:
            return
        self._must_end = True
        if threading.get_ident() == self._thread:
            self.stop()
        elif not self._has_ended.wait(_YIELD_TIMEOUT_S):  # until the training thread has finished its step
            self._is_running = False  # stopping it from this thread would crash the process
            self.fault = PREEMPTION
