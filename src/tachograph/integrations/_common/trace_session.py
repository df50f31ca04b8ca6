"""Torch's profiler around some steps, in a process that may have other plans with it.

There can be one profiler at a time, and torch does not look: a second one ends the first, whose owner crashes the
process when it asks for the results. So ours is not begun while there is another one, and gives way when one begins.
"""

from __future__ import annotations

import gc
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from tachograph._base.guard import guard

__all__ = ["TraceSession", "why_not"]

_LONGEST_S = 120.0
_MOST_GROWTH_BYTES = 512 << 20
"""Of the process while it is traced. A million events or so, about as much as a viewer can open."""
_PATIENCE_S = 5.0
_ENTRANCES = ("_prepare_profiler", "_run_on_profiler_start")
"""What every profiler of torch calls when it begins, in `torch.autograd.profiler`."""

GAVE_WAY = "another profiler was started meanwhile, and there can be one at a time"


def why_not(torch: Any) -> str | None:
    """Return why there cannot be a trace at present, or None."""
    if torch is None:
        return "torch is not in use in this process"
    legacy = torch.autograd.profiler
    if torch.autograd._profiler_enabled() or getattr(legacy, "_is_profiler_enabled", False):
        return "another profiler is at work, and there can be one at a time"
    # One that warms up is not at work yet, but would be disturbed all the same. To one that waits, ours gives way.
    scheduled, warms_up = torch.profiler.profile, torch.profiler.ProfilerAction.WARMUP
    # Of `type(…)`, and not `isinstance`: an object may pretend to be of a class, and import things when it is asked.
    if any(issubclass(type(each), scheduled) and each.current_action == warms_up for each in gc.get_objects()):
        return "another profiler warms up, and there can be one at a time"
    return None


class TraceSession:
    """A profiler from its start to its end, both in the training thread."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._thread = threading.get_ident()
        self._ended = threading.Event()
        self._must_end = False
        self._is_ours = False
        self._originals: dict[str, Callable[..., Any]] = {}
        self._process = psutil.Process()
        self._mark: Any = None
        self.fault = ""
        """Why there will be no trace."""

    def start(self, first: int) -> None:
        """Begin before a step. Whatever torch raises is raised."""
        kinds = self._torch.profiler.ProfilerActivity
        has_cuda = self._torch.cuda.is_available() and self._torch.cuda.is_initialized()
        self._start_s = time.monotonic()
        self._start_bytes = self._process.memory_info().rss
        with warnings.catch_warnings():
            # Some versions warn of what concerns only those who profile several times with one object.
            warnings.simplefilter("ignore", UserWarning)
            self._profiler = self._torch.profiler.profile(
                activities=[kinds.CPU, kinds.CUDA] if has_cuda else [kinds.CPU]
            )
            self._profiler.start()
        self._is_ours = True
        self._watch_entrances()
        self._mark_step(first)

    def _mark_step(self, number: int | None) -> None:
        """Mark in the trace where a step ends and the next one begins, by the name that viewers know."""
        if self._mark is not None:
            self._mark.__exit__(None, None, None)
        self._mark = None
        if number is not None:
            self._mark = self._torch.profiler.record_function(f"ProfilerStep#{number}")
            self._mark.__enter__()

    def step(self, following: int) -> str | None:
        """Hear that a step is done, and which one follows; return why there can be no more, or None."""
        if self._must_end or self.fault:
            return GAVE_WAY
        self._mark_step(following)
        if time.monotonic() - self._start_s > _LONGEST_S:
            return f"ended after {_LONGEST_S:g} s"
        if self._process.memory_info().rss - self._start_bytes > _MOST_GROWTH_BYTES:
            return f"ended because it took more than {_MOST_GROWTH_BYTES >> 20} MiB of memory"
        return None

    def stop(self) -> None:
        """End, in the training thread; afterwards there is a trace to export unless `fault` says otherwise."""
        self._unwatch_entrances()
        if not self._is_ours:
            return
        self._is_ours = False
        if self._must_end:
            self.fault = self.fault or GAVE_WAY
        if not self._torch.autograd._profiler_enabled():
            self.fault = "the profiler was ended by somebody else"
            self._torch.autograd.profiler._run_on_profiler_stop()  # or torch would believe that there is one
        elif threading.get_ident() != self._thread:
            self.fault = "the run ended in another thread than the one that is traced"
        else:
            try:
                self._mark_step(None)
                self._profiler.stop()
            except Exception as error:  # noqa: BLE001 - told as the answer to the request
                self.fault = f"{type(error).__name__}: {error}"
        self._ended.set()

    def export(self, path: Path) -> None:
        """Write the trace, once. May be called in any thread, but torch keeps the interpreter while it writes."""
        self._profiler.export_chrome_trace(str(path))

    def forget(self) -> None:
        """In a forked child: collect nothing more. To end the profiler here might wait for threads that are not."""
        self._unwatch_entrances()
        if self._is_ours:
            self._is_ours = False
            self._torch._C._autograd._enable_record_function(False)
            self._torch.autograd.profiler._run_on_profiler_stop()

    # Giving way ----------------------------------------------------------------------------------------------------

    def _watch_entrances(self) -> None:
        module = self._torch.autograd.profiler
        for name in _ENTRANCES:
            original = getattr(module, name, None)
            if callable(original):
                self._originals[name] = original
                setattr(module, name, self._behind(original))

    def _behind(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def entrance(*args: Any, **kwargs: Any) -> Any:
            with guard("giving way to another profiler"):
                self._give_way()
            return original(*args, **kwargs)

        entrance.__wrapped__ = original  # type: ignore[attr-defined]
        return entrance

    def _unwatch_entrances(self) -> None:
        module = self._torch.autograd.profiler
        for name, original in self._originals.items():
            if getattr(getattr(module, name, None), "__wrapped__", None) is original:  # or somebody has wrapped ours
                setattr(module, name, original)
        self._originals = {}

    def _give_way(self) -> None:
        if not self._is_ours:
            return
        self._must_end = True
        if threading.get_ident() == self._thread:
            self.stop()
        elif not self._ended.wait(_PATIENCE_S):  # until the training thread has ended its step
            self._is_ours = False  # to end it now would crash the process
            self.fault = GAVE_WAY
