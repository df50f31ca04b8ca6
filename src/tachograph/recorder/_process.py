"""Living in someone else's process: its exit, its exceptions, its signals and its forks.

Whatever handler was there before runs after ours, as if we had not been there. Everything is installed with the first
run and taken back with the last.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import Any, NoReturn

from tachograph.guard import guard
from tachograph.journal import forget_claims
from tachograph.recorder._run import Run

__all__ = ["latest_run", "live_runs", "watch"]

_SIGNAL_TIMEOUT_S = 2.0

_runs: list[Run] = []
_current: list[Run] = []
_previous: dict[str, Any] = {}
_registered: set[str] = set()
_exit_code: list[Any] = []


def live_runs() -> list[Run]:
    """Return the runs of this process that have not ended, oldest first."""
    return list(_runs)


def latest_run() -> Run | None:
    """Return the run that `tachograph.log` means: the one begun last, even if it has ended or is our parent's."""
    return _current[0] if _current else None


def watch(run: Run, *, hooks: bool) -> None:
    """Follow a run until it ends: finish it when the process does, and record what ended it."""
    _runs.append(run)
    _current[:] = [run]
    run._on_finish = _unwatch
    if "exit" not in _registered:
        _registered.add("exit")
        atexit.register(_finish_all)
    if "fork" not in _registered and hasattr(os, "register_at_fork"):
        _registered.add("fork")
        os.register_at_fork(after_in_child=_after_fork)
    if hooks:
        _install()


def _unwatch(ended: Run) -> None:
    if ended in _runs:
        _runs.remove(ended)
    if _runs:
        _current[:] = [_runs[-1]]
    else:
        _uninstall()


def _finish_all() -> None:
    """Finish what the training code left open, with what can be known of how the process ends."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    for run in live_runs():
        with guard("finishing a run at exit"):
            if isinstance(error, BaseException):  # an unhandled one, printed by a hook that replaced ours
                run._fail(error)
            elif _exit_code:
                run.finish("failed", reason=f"exit code {_exit_code[-1]}")
            else:
                run.finish(reason="exit")


def _on_sys_exit(code: Any = None, /) -> NoReturn:
    """Remember the code: at the end of the process nothing else tells it."""
    if threading.current_thread() is threading.main_thread():  # elsewhere it ends the thread, not the process
        _exit_code[:] = [code] if code not in (None, 0) else []
    previous = _previous.get("exit")
    if previous is not None:
        previous(code)
    raise SystemExit(code)


def _after_fork() -> None:
    guard.reset()
    for run in _runs:
        run._forget_parent()
    _runs.clear()
    _registered.discard("exit")  # `multiprocessing` clears exit handlers in its children
    forget_claims()
    _uninstall()


def _install() -> None:
    if sys.excepthook is not _on_exception:
        _previous["excepthook"], sys.excepthook = sys.excepthook, _on_exception
    if threading.excepthook is not _on_thread_exception:
        _previous["threading"], threading.excepthook = threading.excepthook, _on_thread_exception
    if sys.exit is not _on_sys_exit:
        _previous["exit"], sys.exit = sys.exit, _on_sys_exit
    if threading.current_thread() is threading.main_thread():
        handler = signal.getsignal(signal.SIGTERM)
        # None: installed by C code that we could not call. Ignored: stays ignored.
        if handler not in (None, signal.SIG_IGN, _on_sigterm):
            _previous["sigterm"] = handler
            signal.signal(signal.SIGTERM, _on_sigterm)


def _uninstall() -> None:
    """Put back what we replaced, where nobody has replaced us since."""
    if sys.excepthook is _on_exception:
        sys.excepthook = _previous.pop("excepthook")
    if threading.excepthook is _on_thread_exception:
        threading.excepthook = _previous.pop("threading")
    if sys.exit is _on_sys_exit:
        sys.exit = _previous.pop("exit")
    _exit_code.clear()
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and "sigterm" in _previous and signal.getsignal(signal.SIGTERM) is _on_sigterm:
        signal.signal(signal.SIGTERM, _previous.pop("sigterm"))


def _on_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    previous = _previous.get("excepthook", sys.__excepthook__)
    for run in live_runs():
        with guard("recording an unhandled exception"):
            run._fail(error)
    previous(kind, error, trace)


def _on_thread_exception(arguments: threading.ExceptHookArgs) -> None:
    previous = _previous.get("threading", threading.__excepthook__)
    if arguments.exc_value is not None and not isinstance(arguments.exc_value, SystemExit):
        name = arguments.thread.name if arguments.thread is not None else "?"
        for run in live_runs():
            run.log_error(arguments.exc_value, where=f"thread {name}")
    previous(arguments)


def _on_sigterm(number: int, frame: FrameType | None) -> None:
    previous = _previous.get("sigterm", signal.SIG_DFL)
    with guard("recording SIGTERM"):
        for run in live_runs():
            run.event("signal", signal="SIGTERM")
            if callable(previous):
                run.flush(_SIGNAL_TIMEOUT_S)  # the handler decides whether the run goes on
            else:
                run.finish("failed", reason="SIGTERM", timeout_s=_SIGNAL_TIMEOUT_S)
    if callable(previous):
        previous(number, frame)
    else:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
