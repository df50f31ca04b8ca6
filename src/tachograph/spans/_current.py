"""Finds the recorder and the parent of a new span: from the current span, else from the current run."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from tachograph._base.importing import import_on_first_use
from tachograph.exceptions import ConfigError
from tachograph.recorder import Run, latest_run, worker_run
from tachograph.spans._recorder import SpanRecorder
from tachograph.spans._span import Span, current_span

__all__ = ["active_recorder", "find_parent", "get_recorder", "recorder_of", "set_run_factory"]

_locks = [threading.RLock()]
if hasattr(os, "register_at_fork"):
    # In a forked child, a thread of the parent may have held it.
    os.register_at_fork(after_in_child=lambda: _locks.__setitem__(0, threading.RLock()))

_run_factories: list[Callable[[str | None], SpanRecorder]] = []


def recorder_of(run: Run) -> SpanRecorder:
    """Return the span recorder of a run; there is one per run."""
    if not isinstance(run, Run):
        raise ConfigError(f"run={run!r:.80}: expected a Run, as returned by tachograph.init(...)")
    if not isinstance(run.span_recorder, SpanRecorder):
        with _locks[-1]:
            if not isinstance(run.span_recorder, SpanRecorder):
                run.span_recorder = SpanRecorder(run)
    return run.span_recorder


def find_parent() -> Span:
    """Return the innermost open span of the current context, or the base span of the current run."""
    span = current_span.get()
    while span is not None and (span.stop_s is not None or (span.recorder is not None and span.recorder.is_closed)):
        span = span._parent
    if span is not None and span.name and span.recorder is not None:
        return span
    return _current_recorder().base


def get_recorder() -> SpanRecorder:
    """Return the recorder of the current span, else of the current run.

    If no run was started yet, one is started with the settings of the environment.
    """
    recorder = find_parent().recorder
    assert isinstance(recorder, SpanRecorder)  # noqa: S101 - an open span of a run has one
    return recorder


def active_recorder(run_name: str | None) -> SpanRecorder:
    """Return the recorder of the current run, or of a new one if none is running."""
    with _locks[-1]:
        run = latest_run()
        return recorder_of(run) if run is not None and run.status == "running" else _start_run(run_name)


def set_run_factory(factory: Callable[[str | None], SpanRecorder] | None) -> None:
    """Set how a run is started where one is needed and none is running; None restores `init`."""
    _run_factories[:] = [factory] if factory is not None else []


def _current_recorder() -> SpanRecorder:
    run = latest_run()
    if run is not None:
        return recorder_of(run)
    with _locks[-1]:  # several threads may need a run at the same time
        run = latest_run()
        return recorder_of(run) if run is not None else _start_run(None)


def _start_run(name: str | None) -> SpanRecorder:
    run = worker_run()
    if run is not None:
        return recorder_of(run)
    if _run_factories:
        return _run_factories[-1](name)
    import_on_first_use("tachograph._init")
    from tachograph._init import init

    recorder = recorder_of(init(name))
    recorder.owns_run = True
    return recorder
