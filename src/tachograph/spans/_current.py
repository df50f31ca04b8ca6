"""Which span, and which run, a new span belongs to."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from tachograph.exceptions import ConfigError
from tachograph.recorder import Run, latest_run, worker_run
from tachograph.spans._recorder import TrainingRecorder
from tachograph.spans._span import Span, current_span

__all__ = ["fresh_recorder", "find_parent", "get_recorder", "recorder_of", "set_run_maker"]

_locks = [threading.RLock()]
if hasattr(os, "register_at_fork"):
    # In a forked child, a thread of the parent may have held it.
    os.register_at_fork(after_in_child=lambda: _locks.__setitem__(0, threading.RLock()))

_run_makers: list[Callable[[str | None], TrainingRecorder]] = []


def recorder_of(run: Run) -> TrainingRecorder:
    """Return what records the spans of a run; there is one for each run."""
    if not isinstance(run, Run):
        raise ConfigError(f"run={run!r:.80}: a Run is expected, as tachograph.init(...) returns it")
    if not isinstance(run.span_recorder, TrainingRecorder):
        with _locks[-1]:
            if not isinstance(run.span_recorder, TrainingRecorder):
                run.span_recorder = TrainingRecorder(run)
    return run.span_recorder


def find_parent() -> Span:
    """Return the open span around the present place, or what stands for the run if there is none."""
    span = current_span.get()
    while span is not None and (span.stop_s is not None or (span.recorder is not None and span.recorder.is_closed)):
        span = span._parent
    if span is not None and span.name and span.recorder is not None:
        return span
    return _present_recorder().base


def get_recorder() -> TrainingRecorder:
    """Return what records spans at the present place: that of the current span, else that of the current run.

    Where no run was begun yet, one is begun with the settings of the environment.
    """
    recorder = find_parent().recorder
    assert recorder is not None  # noqa: S101 - a parent that was found has one
    return recorder


def fresh_recorder(name: str | None) -> TrainingRecorder:
    """Return the recorder for an application: of the current run, or of a new one if there is none that goes on."""
    with _locks[-1]:
        run = latest_run()
        return recorder_of(run) if run is not None and run.status == "running" else _make_run(name)


def set_run_maker(make: Callable[[str | None], TrainingRecorder] | None) -> None:
    """Say how a run is begun where one is needed and there is none; None goes back to `init`."""
    _run_makers[:] = [make] if make is not None else []


def _present_recorder() -> TrainingRecorder:
    run = latest_run()
    if run is not None:
        return recorder_of(run)
    with _locks[-1]:  # several threads may come here at the same time
        run = latest_run()
        return recorder_of(run) if run is not None else _make_run(None)


def _make_run(name: str | None) -> TrainingRecorder:
    run = worker_run()
    if run is not None:
        return recorder_of(run)
    if _run_makers:
        return _run_makers[-1](name)
    from tachograph._init import init

    recorder = recorder_of(init(name))
    recorder.owns_run = True
    return recorder
